"""Points in this process, one after the other."""

from collections.abc import Generator, Iterable

from kvferry.analysis.journal import Row
from kvferry.analysis.point import Point, Work


class InProcess:
    """The executor for one core, for real runs, which have the machine to themselves, and for debugging."""

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rows(self, points: Iterable[Point], work: Work) -> Generator[Row, None, None]:
        """As ``Executor.rows`` says; in the order of the points."""
        for point in points:
            yield work(point)
