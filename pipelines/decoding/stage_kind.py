"""The answers of every kind of stage: how a pipeline begins it, and what a planner prices it at."""

from collections.abc import Sequence
from typing import Literal, Protocol

from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.prices import Parts, Prices
from kvferry.pipelines.decoding.state import DecodeState

# Workers at a stage: the processor, or what moves KV between the tiers.
Worker = Literal["processor", "mover"]
After = Sequence[Ticket]


class Kind(Protocol):
    worker: Worker

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket: ...

    def parts(self, prices: Prices) -> Parts:
        """Returns what it takes on average, queue by queue."""
        ...
