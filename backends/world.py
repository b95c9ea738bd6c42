"""Where a scenario takes place: a machine, the cloud's contexts and the link between them, modelled or real."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Tell
from kvferry.policies.decode.grouping import KvShape
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.layout import Layout
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


class DecodeSizes(Protocol):
    """What a world needs to know of a plan for decoding with KV on storage; sizes are per sequence."""

    @property
    def layout(self) -> Layout: ...
    @property
    def shape(self) -> KvShape: ...
    @property
    def group_tokens(self) -> int: ...
    @property
    def heads(self) -> int:
        """Parts of the KV heads that choose for themselves."""
        ...

    @property
    def units(self) -> int:
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
    def mapped_bytes(self) -> float | None:
        """What a file that is mapped into memory may take there; None: it is read past the page cache."""
        ...


class DecodeWorld(Protocol):
    """Where a batch is decoded. Its machine's clock begins at 0."""

    @property
    def machine(self) -> Machine: ...

    @property
    def equal_steps(self) -> bool:
        """Steps with equal work take equal time: a few of them tell of all."""
        ...

    @property
    def weights_refused(self) -> Refused | None: ...

    def energy_j(self, until_s: float) -> dict[str, float]: ...

    def storage_utilisation(self, until_s: float) -> float:
        """The share of the time in which storage was at work."""
        ...

    def measured(self) -> dict[str, Any]: ...


class OpenDecodeWorld(Protocol):
    def __call__(
        self, scenario: Scenario, sizes: DecodeSizes | None, tell: Tell, say: Say
    ) -> AbstractContextManager[DecodeWorld]:
        """The scenario's world for as long as the block lasts; `sizes` are None where no KV lies on storage. Raises
        InputError."""
        ...


class OpenWorld(Protocol):
    def __call__(self, scenario: Scenario, codec: str, tell: Tell, say: Say) -> AbstractContextManager[World]:
        """The scenario's world, its contexts encoded by a codec, for as long as the block lasts. Raises InputError."""
        ...
