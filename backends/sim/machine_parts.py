"""What a modelled machine is made with."""

from collections.abc import Callable
from dataclasses import dataclass

from kvferry.backends.sim.op_answers import NO_ANSWERS, OpAnswers
from kvferry.policies.decode.upkeep import Ahead
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import KvferryError
from kvferry.traces.stored import StoredContext


def _no_contexts(sequence: int) -> StoredContext:
    raise KvferryError("this workload has no contexts in a cloud")


@dataclass(frozen=True, kw_only=True)
class SimParts:
    """Holds what a SimMachine is made with: its device as it is under this need, and what answers its ops that choose;
    and the contexts that lie in the cloud for it."""

    device: DeviceSpec
    answers: OpAnswers = NO_ANSWERS
    keys: Ahead | None = None
    stored: Callable[[int], StoredContext] = _no_contexts
    # The storage file is mapped into memory: its size, and how much of it may be there.
    mapped: tuple[float, float] | None = None
