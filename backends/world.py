"""Where a scenario takes place: machines, what they need to be given, and what can be recorded of a run.

One protocol, one modelled world (backends/sim/world.py), one real one (backends/live/world.py). Workloads differ in
what they need and in their inputs, never in their worlds.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Tell
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.layout import Layout
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.tier import Tier
from kvferry.traces.assignments import RecordedAssignments
from kvferry.traces.rate import RateTrace
from kvferry.traces.selections import SelectionStream
from kvferry.traces.stored import StoredContext

# Called with what is being made ready, where that takes a while.
Say = Callable[[str], None]
# The machine that a scenario's device is.
DEVICE = "device"


class DecodeSizes(Protocol):
    """What a world needs to know of a plan for decoding with KV on storage; sizes are per sequence."""

    @property
    def layout(self) -> Layout: ...
    @property
    def model(self) -> ModelSpec: ...
    @property
    def group_tokens(self) -> int: ...
    @property
    def heads(self) -> int:
        """Parts of the KV heads that choose for themselves."""
        ...

    @property
    def blocks(self) -> int:
        """Groups of the context."""
        ...

    @property
    def selected(self) -> int | None:
        """Of them, each layer's selection; None: all."""
        ...

    @property
    def slots(self) -> int: ...
    @property
    def rank(self) -> int:
        """Width of the compressed keys over all heads."""
        ...

    @property
    def index(self) -> IndexSpec | None:
        """What KV blocks are chosen with; None: all are read."""
        ...

    @property
    def rebuilt_rank(self) -> int | None:
        """Numbers per token from which keys are rebuilt; None: keys lie in the file too."""
        ...

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where each layer's KV lies after prefill."""
        ...

    @property
    def mapped_bytes(self) -> float | None:
        """What a file that is mapped into memory may take there; None: it is read past the page cache."""
        ...


@dataclass(frozen=True, kw_only=True)
class Paged:
    """KV that is in memory while decoding: tokens of each prompt and of the longest answer; pages of the pool."""

    prompts: tuple[int, ...]
    output: int
    pages: int


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a flow needs of the world that it runs in.

    ``codec``: contexts lie in the cloud, encoded so; None: there are none. ``kv``: sizes of the KV that lies on storage
    while decoding, of ``sequences`` prompts that decode together. ``paged``: KV that is in memory while decoding.
    """

    codec: str | None = None
    kv: DecodeSizes | None = None
    sequences: int = 0
    paged: Paged | None = None


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What varies from run to run by content: recorded in one world, given to another.

    None: a modelled world generates it from the scenario's seed, or reads the file that the scenario names.
    ``stored``: sizes and attention blocks of each request's context. ``selections``: the KV blocks that each step
    selects, sequence after sequence. ``assignments``: the cluster that each new key joined.
    """

    stored: tuple[StoredContext, ...] | None = None
    selections: SelectionStream | None = None
    assignments: RecordedAssignments | None = None


class World(Protocol):
    """Everything that a run touches. The clock of its machines begins at 0, as do the link's rates."""

    @property
    def machines(self) -> Mapping[str, Machine]:
        """By instance name, all in one environment; DEVICE is the scenario's device."""
        ...

    @property
    def machine(self) -> Machine:
        """The scenario's device."""
        ...

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
        """Why the model is not in memory; nothing can run then."""
        ...

    def stored(self, sequence: int) -> StoredContext:
        """The context of a request in the cloud, where ``Needs.codec`` asks for contexts."""
        ...

    def inputs(self) -> Inputs:
        """What the run so far was given or found, for another world to replay."""
        ...

    def energy_j(self, until_s: float) -> dict[str, float]:
        """By component, since the beginning; empty where no meter counts it."""
        ...

    def storage_utilisation(self, until_s: float) -> float:
        """The share of the time in which storage was at work."""
        ...

    def measured(self) -> dict[str, Any]:
        """What else was observed and need not be the same in two equal runs."""
        ...


class OpenWorld(Protocol):
    def __call__(
        self, scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say
    ) -> AbstractContextManager[World]:
        """The scenario's world for as long as the block lasts. Raises InputError."""
        ...
