"""A batch of which the device holds no sequence: an outcome, known before a world is opened for it."""

from collections.abc import Callable

from kvferry.backends.needs import Needs, NoKv
from kvferry.backends.world import DEVICE, World
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Left, OutOfMemory, Process


class NoRoomFlow:
    """A Flow that ends before its first op."""

    def __init__(self, why: str) -> None:
        self._why = why

    @property
    def needs(self) -> Needs:
        return {DEVICE: NoKv()}

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        """Raises OutOfMemory."""
        raise OutOfMemory(self._why)
        yield

    def left(self, world: World, end: Totals) -> Left:
        return Left(requests=())

    def kept(self) -> str:
        return "nothing"
