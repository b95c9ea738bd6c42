"""What each sort of need makes of a real machine."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from kvferry.backends.live.assist.parts import PromptParts
from kvferry.backends.live.decoding.parts import PagedParts, StoredKvParts
from kvferry.backends.live.engine.out_of_memory import told_as_out_of_memory
from kvferry.backends.live.loading.cloud_parts import LoadingParts
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.live.turns.parts import TurnParts
from kvferry.backends.needs import (
    ContextsInCloud,
    KvInPages,
    KvOfTurns,
    KvOfTurnsInCloud,
    KvOnStorage,
    Need,
    Needs,
    NoKv,
    Prompts,
)
from kvferry.backends.world import Say
from kvferry.machine.ops import Op
from kvferry.specs.errors import InputError
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario


class NoKvParts(MachineParts):
    """A machine that takes part in channels, and runs nothing."""

    def __init__(self, *_: object) -> None:
        self.runner = self

    def run(self, op: Op, request: int | None, inputs: Sequence[Any]) -> Any:
        """Raises InputError."""
        raise InputError(f"this machine was made without KV: backend torch has nothing to run {op.label} on")


def check_needs(needs: Needs) -> None:
    """Raises InputError for machines that cannot work together for real."""
    clouds = [name for name, need in needs.items() if isinstance(need, Prompts) and name != DEVICE]
    if len(clouds) > 1:
        what = "KV of real sessions does not move between machines, so one instance prefills and decodes"
        raise InputError(f"machines: {', '.join(clouds)}: {what}; name it cloud, with count: 1, or take backend: sim")


def parts_for(scenario: Scenario, need: Need, say: Say, stack: ExitStack) -> MachineParts:
    """Makes what the scenario's device needs; `stack` closes it with the world. Raises InputError, OutOfMemory."""
    if type(need) not in _MAKERS:
        raise InputError(f"backend: torch has nothing that runs workload kind {scenario.workload.kind}; take sim")
    with told_as_out_of_memory("no memory is left"):
        return _MAKERS[type(need)](scenario, need, say, stack)


# How a machine is made for each sort of need.
_MAKERS: dict[type[Need], Callable[[Scenario, Any, Say, ExitStack], MachineParts]] = {
    NoKv: NoKvParts,
    Prompts: PromptParts,
    KvInPages: PagedParts,
    ContextsInCloud: LoadingParts,
    KvOnStorage: StoredKvParts,
    KvOfTurns: TurnParts,
    KvOfTurnsInCloud: TurnParts,
}
