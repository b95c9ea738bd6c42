"""The prices of stages of decoding, without events."""

from typing import Literal, NamedTuple, Protocol

from kvferry.machine.ops import Op
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.specs.tier import Tier

# Queues that work in order: the processor, storage, and the copy path between the memories. ``writes``: of storage that
# reads and writes at the same time.
Queue = Literal["processor", "storage", "writes", "copies"]


class Part(NamedTuple):
    """A part of a stage: one queue at work."""

    queue: Queue
    seconds: float


# One after the other; none: the stage takes no time, and waits for no queue.
Parts = tuple[Part, ...]


class Prices(Protocol):
    """A plan's mean step, for a layer whose KV lies in a given tier."""

    @property
    def plan(self) -> DecodePlan: ...

    @property
    def tier(self) -> Tier: ...

    @property
    def missing(self) -> float:
        """Returns KV blocks of one layer that the batch selects and that have to move to the processor's memory."""
        ...

    def work(self, op: Op) -> Parts:
        """The processor carries out an op."""
        ...

    def move(self, commands: float, each_bytes: int, source: Tier, to: Tier) -> Parts:
        """Prices `commands` byte ranges of one length, from tier to tier; nothing within a tier."""
        ...
