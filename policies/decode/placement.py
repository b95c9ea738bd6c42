"""Placements: the tier in which each layer's KV lies, and when it moves to another."""

from dataclasses import dataclass
from typing import Protocol

from kvferry.specs.tier import Tier


@dataclass(frozen=True, kw_only=True)
class KvSize:
    """The KV of a whole batch: facts that a placement decides by."""

    layers: int
    # Tokens of each sequence, those decoded so far among them.
    tokens: int
    # Of all layers and sequences at the end of the run, and what memory may take of it.
    whole_bytes: float
    memory_bytes: float


class Placement(Protocol):
    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        """Where each layer's KV lies, from the first to the last."""
        ...


@dataclass(frozen=True)
class OneTier:
    """All layers in one tier, from beginning to end."""

    tier: Tier

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        return (self.tier,) * size.layers


@dataclass(frozen=True)
class AllOrNothing:
    """All in the processor's memory when the whole output fits there; else all on storage."""

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        fits = size.whole_bytes <= size.memory_bytes
        return ("device" if fits else "storage",) * size.layers
