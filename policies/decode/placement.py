"""Placements: the tier in which each layer's KV lies, and when it moves to another."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from kvferry.specs.tier import Tier
from kvferry.specs.units import Bytes


@dataclass(frozen=True, kw_only=True)
class KvSize:
    """The KV of a whole batch: facts that a placement decides by."""

    layers: int
    # Of each sequence: now, and at the end of the run.
    tokens: int
    most_tokens: int
    # Of one token of every sequence in one layer.
    token_bytes: float
    # What KV may take of the processor's memory.
    memory_bytes: float


class Placement(Protocol):
    @property
    def away(self) -> Tier | None:
        """Where KV lies that is not in the processor's memory; None: all of it always is."""
        ...

    @property
    def mapped(self) -> bool:
        """KV on storage is a file that is mapped into memory: the operating system reads and keeps its pages."""
        ...

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        """Where each layer's KV lies, from the first to the last."""
        ...


@dataclass(frozen=True)
class OneTier:
    """All layers in one tier, from beginning to end."""

    tier: Tier
    mapped = False

    @property
    def away(self) -> Tier | None:
        return None if self.tier == "device" else self.tier

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        return (self.tier,) * size.layers


@dataclass(frozen=True)
class AllOrNothing:
    """All in the processor's memory when the whole output fits there; else all on storage, in a file that is mapped
    into memory."""

    away: ClassVar[Tier] = "storage"
    mapped = True

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        fits = size.layers * size.most_tokens * size.token_bytes <= size.memory_bytes
        tier: Tier = "device" if fits else "storage"
        return (tier,) * size.layers


@dataclass(frozen=True, kw_only=True)
class Progressive:
    """As many layers as fit stay in the processor's memory. As the KV grows, one after the other moves to
    ``overflow``, the last layer first (SpeContext, algorithms 1 and 2). ``host_bytes``: what KV may take there; as many
    layers as fit lie there, and the last ones on storage. None: all that overflow."""

    overflow: Literal["host", "storage"] = "host"
    host_bytes: Bytes | None = None
    mapped = False

    @property
    def away(self) -> Tier:
        return self.overflow

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        layer_bytes = size.tokens * size.token_bytes
        near = min(size.layers, int(max(0.0, size.memory_bytes) // layer_bytes))
        beside = size.layers - near
        if self.host_bytes is not None and self.overflow == "host":
            beside = min(beside, int(self.host_bytes // layer_bytes))
        tiers: list[Tier] = ["device"] * near
        tiers += [self.overflow] * beside
        tiers += ["storage"] * (size.layers - near - beside)
        return tuple(tiers)
