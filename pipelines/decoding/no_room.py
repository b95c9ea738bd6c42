"""A batch that finds no room on the device: an outcome, known before a world is opened for it."""

from collections.abc import Callable

from kvferry.backends.needs import Needs, NoKv
from kvferry.backends.world import World
from kvferry.pipelines.decoding.budget import hold_workspace, left_bytes
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Left, Process
from kvferry.policies.decode.roles import Roles
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario


class NoRoomFlow:
    """A Flow that ends before its first op, with what intermediate values hold of the memory, if that fits."""

    def __init__(self, scenario: Scenario, roles: Roles, why: str) -> None:
        self._scenario, self._roles, self._why = scenario, roles, why

    @property
    def needs(self) -> Needs:
        return {DEVICE: NoKv()}

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        """Raises OutOfMemory."""
        if left_bytes(self._scenario, self._roles) >= 0:
            hold_workspace(world.machine, self._scenario, self._roles)
        raise OutOfMemory(self._why)
        yield

    def left(self, world: World, end: Totals) -> Left:
        return Left(requests=())

    def kept(self) -> str:
        return "nothing"
