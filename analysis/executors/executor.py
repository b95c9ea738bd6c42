"""What every executor is."""

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from kvferry.analysis.journal import Row
from kvferry.analysis.point import Point, Work


class Executor(AbstractContextManager["Executor", None], Protocol):
    """Runs points somewhere. Rows depend on the points alone: never on the executor, nor on how many run at once.

    It is used in a ``with``, in which ``rows`` may be called again and again.
    """

    def rows(self, points: Iterable[Point], work: Work) -> Generator[Row, None, None]:
        """Yield a row per point as the points finish, in any order. Takes points only as it has room for them.

        A point whose process dies, also when it runs alone, has the outcome "failed". Closed early, the generator gives
        up what is under way. Raises KvferryError when there is nowhere left to run anything.
        """
        ...


# Why a point failed that ended its process.
DIED = "its process died: killed, or out of memory"
