"""The answers of every kind of stage: how a pipeline begins it, and what a planner prices it at."""

from collections.abc import Sequence
from typing import Literal, Protocol

from kvferry.layouts.layout import Ranges
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


class OfLayersAlike:
    """A base of stages that answer and count, as they begin for the first of layers that are alike, for all of these.
    The others hand over the same op, and read what is ``moved``, once what they wait for has ended."""

    def moved(self, now: DecodeState, layer: int) -> Ranges | None:
        """Returns what such a stage brings of a layer; None: nothing, or at another time."""
        return None
