"""What each sort of need makes of a real machine."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from kvferry.backends.live.decoding.paged_parts import PagedParts
from kvferry.backends.live.decoding.parts import StoredKvParts
from kvferry.backends.live.engine.machine import LiveMachine, OpRunner
from kvferry.backends.live.loading.cloud_parts import LoadingParts
from kvferry.backends.needs import ContextsInCloud, KvInPages, KvOnStorage, Need, NoKv
from kvferry.backends.world import Inputs, Say
from kvferry.machine.ops import Op
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext


class Parts(Protocol):
    """What a machine is made of besides its threads and queues."""

    @property
    def runner(self) -> OpRunner: ...

    def machine_options(self) -> dict[str, Any]:
        """Further arguments of the LiveMachine: its fetcher and decoder, its storage."""
        ...

    def warm_up(self, machine: LiveMachine) -> None:
        """Runs once what is slow the first time (choosing kernels, starting threads, mapping the pages of buffers), so
        that no request pays for it."""
        ...

    def stored(self, sequence: int) -> StoredContext: ...

    def inputs(self) -> Inputs: ...

    def measured(self) -> dict[str, Any]: ...


class NoKvParts:
    """A machine that takes part in channels, and runs nothing."""

    def __init__(self, scenario: Scenario, need: NoKv, say: Say, stack: ExitStack) -> None:
        self.runner = self

    def run(self, op: Op, request: int | None, inputs: Sequence[Any]) -> Any:
        """Raises InputError."""
        raise InputError(f"this machine was made without KV: backend torch has nothing to run {op.label} on")

    def machine_options(self) -> dict[str, Any]:
        return {}

    def warm_up(self, machine: LiveMachine) -> None:
        """Nothing here is slow the first time."""

    def stored(self, sequence: int) -> StoredContext:
        raise KvferryError("this workload has no contexts in a cloud")

    def inputs(self) -> Inputs:
        return Inputs()

    def measured(self) -> dict[str, Any]:
        return {}


def parts_for(scenario: Scenario, need: Need, say: Say, stack: ExitStack) -> Parts:
    """Makes what the scenario's device needs; `stack` closes it with the world. Raises InputError."""
    return _MAKERS[type(need)](scenario, need, say, stack)


# How a machine is made for each sort of need.
_MAKERS: dict[type[Need], Callable[[Scenario, Any, Say, ExitStack], Parts]] = {
    NoKv: NoKvParts,
    KvInPages: PagedParts,
    ContextsInCloud: LoadingParts,
    KvOnStorage: StoredKvParts,
}
