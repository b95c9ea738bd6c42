"""What a flow needs of the machines of its world: contexts in a cloud, KV on storage, KV in pages of memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.policies.decode.index import IndexSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.tier import Tier


class DecodeSizes(Protocol):
    """What a world needs to know of a plan for decoding with KV on storage; sizes are per sequence."""

    @property
    def layout(self) -> AnyLayout: ...
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
    def file_bytes(self) -> int:
        """Bytes of the storage file."""
        ...

    @property
    def slots(self) -> int: ...
    @property
    def kept_tokens(self) -> int:
        """Tokens of each row and layer that are kept from one step to the next, where that is not said in slots."""
        ...

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
    def writes_back(self) -> bool:
        """All KV of a layer that lies elsewhere is written there anew in every step."""
        ...

    @property
    def newest_tokens(self) -> int | None:
        """New tokens that stay in the processor's memory, where others lie on the host; None: all of them stay."""
        ...

    @property
    def mapped_bytes(self) -> float | None:
        """What a file that is mapped into memory may take there; None: it is read past the page cache."""
        ...


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one machine must have. A new sort of need is a subclass here and a maker in the table of each world:
    ``backends.sim.parts`` and ``backends.live.parts``."""

    # Whether the machine fetches over its link.
    fetches: ClassVar[bool] = False
    # What software takes on a modelled machine, where its profile does not say it; None: nothing.
    runtime: RuntimeSpec | None = None


@dataclass(frozen=True, kw_only=True)
class NoKv(Need):
    """Channels to other machines. The modelled world runs ops too; the real one has no KV for them, and raises
    InputError."""


@dataclass(frozen=True, kw_only=True)
class Prompts(Need):
    """Prompts are prefilled, whole or behind a part of them, and answers decoded, whichever request comes when; and
    channels to other machines."""


@dataclass(frozen=True, kw_only=True)
class ContextsInCloud(Need):
    """The scenario's contexts lie in the cloud, encoded with ``codec``, and can be fetched."""

    codec: str
    fetches: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class KvOnStorage(Need):
    """KV of these sizes lies on storage while ``sequences`` prompts decode together."""

    sizes: DecodeSizes
    sequences: int


@dataclass(frozen=True, kw_only=True)
class KvInPages(Need):
    """KV is in memory while decoding: tokens of each prompt and of the longest answer; pages of the pool. ``evicts``:
    that of some tokens is given up for good."""

    prompts: tuple[int, ...]
    output: int
    pages: int
    evicts: bool = False


# By machine; one that is not named is not opened, but for the device.
Needs = Mapping[str, Need]
