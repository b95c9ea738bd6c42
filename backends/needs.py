"""What a flow needs of the machines of its world: contexts in a cloud, KV on storage, KV in pages of memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.policies.decode.sizes import Choice, KeySizes, Known, StayingSizes
from kvferry.specs.model import ModelSpec
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.tier import Tier
from kvferry.traces.turn import Turns


class DecodeSizes(Protocol):
    """What a world needs to know of a plan for decoding with KV on storage; sizes are per sequence."""

    @property
    def model(self) -> ModelSpec: ...
    @property
    def layout(self) -> AnyLayout: ...
    @property
    def choice(self) -> Choice: ...
    @property
    def keys(self) -> KeySizes: ...
    @property
    def staying(self) -> StayingSizes: ...
    @property
    def file_bytes(self) -> int:
        """Bytes of the storage file."""
        ...

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where each layer's KV lies after prefill."""
        ...

    @property
    def writes_back(self) -> bool:
        """Whether all KV of a layer that lies elsewhere is written there in every step."""
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
    """KV of these sizes lies on storage while ``sequences`` prompts decode together. `known`: what of a prompt is there
    before prefill; None: nothing."""

    sizes: DecodeSizes
    sequences: int
    known: Known | None = None


@dataclass(frozen=True, kw_only=True)
class KvInPages(Need):
    """KV is in memory while decoding: tokens of each prompt and of the longest answer; pages of the pool. ``evicts``:
    that of some tokens is given up for good."""

    prompts: tuple[int, ...]
    output: int
    pages: int
    evicts: bool = False


@dataclass(frozen=True, kw_only=True)
class KvOfTurns(Need):
    """These turns of conversations answer one after the other, each with KV of its own sizes, in memory or on storage.
    Between turns, up to `places` blocks of their tokens lie on storage, of `place_bytes` each, and as many more as
    `pages` while one decodes there. `decoding`: where KV lies while the longest of them decodes; None: all of it in
    memory. `helped`: other machines are asked for tokens."""

    turns: Turns
    places: int
    place_bytes: int
    pages: int = 0
    decoding: KvOnStorage | None = None
    helped: bool = False


@dataclass(frozen=True, kw_only=True)
class KvOfTurnsInCloud(KvOfTurns):
    """The same, and beginnings of prompts lie in the cloud, encoded by blocks with ``codec``, and can be fetched;
    `sends`: what turns leave is sent there."""

    codec: str
    sends: bool = False
    fetches: ClassVar[bool] = True


# By machine; one that is not named is not opened, but for the device.
Needs = Mapping[str, Need]
