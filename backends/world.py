"""Where a scenario takes place: a machine, the cloud's contexts and the link between them, modelled or real."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Tell
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace
from kvferry.traces.stored import StoredContext

# Told what is being made ready, where that takes a while.
Say = Callable[[str], None]


class World(Protocol):
    """Everything that a run touches. Its machine's clock begins at 0, as do the link's rates."""

    @property
    def machine(self) -> Machine: ...

    @property
    def link(self) -> RateTrace:
        """Bytes per second over the run."""
        ...

    @property
    def available(self) -> RateTrace:
        """The share of the main processor that others leave."""
        ...

    @property
    def weights_refused(self) -> Refused | None:
        """Why the model is not in memory; nothing can be run then."""
        ...

    def stored(self, sequence: int) -> StoredContext:
        """One of the contexts in the cloud."""
        ...

    def energy_j(self, until_s: float) -> dict[str, float]:
        """By component, since the beginning; empty where nothing tells."""
        ...

    def measured(self) -> dict[str, Any]:
        """What else was seen, that two equal runs need not share."""
        ...


class OpenWorld(Protocol):
    def __call__(self, scenario: Scenario, codec: str, tell: Tell, say: Say) -> AbstractContextManager[World]:
        """The scenario's world, its contexts encoded by a codec, for as long as the block lasts. Raises InputError."""
        ...
