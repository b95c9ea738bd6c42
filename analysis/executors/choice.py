"""Which executor a name means."""

import re
from collections.abc import Generator, Iterable

from kvferry.analysis.executors.cores import Cores
from kvferry.analysis.executors.executor import Executor
from kvferry.analysis.journal import Row
from kvferry.analysis.point import Point, Work
from kvferry.specs.errors import InputError


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


NAMES = ("in-process", "cores")
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


def executor_for(name: str | None, workers: int | None = None) -> Executor:
    """The executor "in-process", "cores", or that of a dask scheduler by its address; None: cores, unless there is
    to be one worker only.

    Raises InputError for another name, and for a number of workers where it means nothing; MissingExtra for a scheduler
    without dask.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--jobs {workers}: is not at least 1; leave it out for all cores")
    if name is None:
        name = "in-process" if workers == 1 else "cores"
    if name == "in-process":
        if workers not in (None, 1):
            raise InputError(f"--jobs {workers}: in-process runs one point after the other; leave it out")
        return InProcess()
    if name == "cores":
        return Cores(workers)
    if not _ADDRESS.fullmatch(name):
        raise InputError(f"--executor {name!r:.100}: is none of {', '.join(NAMES)}, and no address as tcp://HOST:PORT")
    if workers is not None:
        raise InputError(f"--jobs {workers}: a scheduler has workers of its own; leave it out")
    from kvferry.analysis.executors.machines import Machines

    return Machines(name)
