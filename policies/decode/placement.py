"""Placements: the tier in which each layer's KV lies, and when it moves to another."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from kvferry.specs.tier import TIERS, Tier
from kvferry.specs.units import Bytes


@dataclass(frozen=True, kw_only=True)
class KvSize:
    """The KV of a whole batch: facts that a placement decides by."""

    layers: int
    # Tokens of each sequence, now and at the end of the run.
    tokens: int
    most_tokens: int
    # A token of every sequence in one layer takes this.
    token_bytes: float
    # KV may take this of the processor's memory.
    memory_bytes: float
    # More that grows with the tokens, in layers of KV: a retrieval head's own cache and working copy.
    beside_layers: float = 0.0
    # Tokens of each sequence for which there is room in the processor's memory per layer that lies elsewhere.
    away_tokens: int = 0

    def held(self, tiers: Sequence[Tier]) -> dict[tuple[Tier, str], float]:
        """Returns the bytes of each tier by name, where layers lie so: KV itself, in the processor's memory slots of
        layers that lie elsewhere, and what grows besides."""
        layer_bytes = self.token_bytes * self.tokens
        found = {(tier, "kv"): tiers.count(tier) * layer_bytes for tier in TIERS}
        away = self.layers - tiers.count("device")
        found["device", "kv: slots"] = away * min(self.away_tokens, self.tokens) * self.token_bytes
        found["device", "kv: index"] = self.beside_layers * layer_bytes
        return found

    def held_bytes(self, near: int) -> float:
        """Returns what of the processor's memory is held with the KV of `near` layers there (SpeContext Eq. 7)."""
        tiers: list[Tier] = ["device"] * near
        tiers += ["host"] * (self.layers - near)
        return sum(n_bytes for (tier, _), n_bytes in self.held(tiers).items() if tier == "device")


# Numbers of tokens, as a file has them in a list.
Thresholds = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False, max_length=1000)]


def thresholds(size: KvSize) -> tuple[float, ...]:
    """Returns the most tokens per sequence that fit into ``size.memory_bytes`` with the last 0, 1, ... all layers
    elsewhere, as whole numbers or infinity; never descending (SpeContext, Algorithm 1).

    ``size.tokens`` is not asked. The factor of K and V stands before `i x B` too, as Eq. 7 has it and line 3 of the
    algorithm has not."""
    most = max(0.0, size.memory_bytes) / size.token_bytes
    all_near = math.floor(most / (size.layers + size.beside_layers))
    if all_near < size.away_tokens:
        # KV that lies elsewhere would take as much here.
        return (all_near,) * (size.layers + 1)
    found: list[float] = []
    for away in range(size.layers + 1):
        growing = size.layers - away + size.beside_layers
        left = most - away * size.away_tokens
        found.append(math.floor(left / growing) if growing else math.inf if left >= 0 else -1)
    return tuple(found)


class Placement(ABC):
    """Base of all placements."""

    @property
    @abstractmethod
    def away(self) -> Tier | None:
        """Returns the tier of KV outside the processor's memory; None: there is none."""

    @property
    def mapped(self) -> bool:
        """Returns whether KV on storage is a file mapped into memory: the operating system reads and keeps its
        pages."""
        return False

    # Memory for intermediate values, as a share of the weights: what a placement by a formula of memory leaves to them.
    # 0: what they are known to take.
    runtime_share: float = 0.0

    @abstractmethod
    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        """Returns where each layer's KV lies, from the first to the last."""


@dataclass(frozen=True)
class OneTier(Placement):
    """All layers in one tier, from beginning to end."""

    tier: Tier

    @property
    def away(self) -> Tier | None:
        return None if self.tier == "device" else self.tier

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        return (self.tier,) * size.layers


@dataclass(frozen=True, kw_only=True)
class AllOrNothing(Placement):
    """All in the processor's memory when the whole output fits there, as is decided before the run; else all in
    ``overflow``: on storage, in a file that is mapped into memory, or in the host's memory."""

    overflow: Literal["host", "storage"] = "storage"

    @property
    def away(self) -> Tier:
        return self.overflow

    @property
    def mapped(self) -> bool:
        return self.overflow == "storage"

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        fits = replace(size, tokens=size.most_tokens).held_bytes(size.layers) <= size.memory_bytes
        tier: Tier = "device" if fits else self.overflow
        return (tier,) * size.layers


@dataclass(frozen=True, kw_only=True)
class Progressive(Placement):
    """Keeps as many layers as fit in the processor's memory. As the KV grows, one after the other moves to
    ``overflow``, the last layer first (SpeContext, algorithms 1 and 2). ``host_bytes``: what KV may take there; as many
    layers as fit lie there, and the last ones on storage. None: all that overflow. ``thresholds``: the tokens beyond
    which one layer, two, ... have moved; None: by what memory holds. ``runtime_share``: of the weights, held for
    intermediate values, as SpeContext holds 0.3 (Eq. 6). ValueError for a list that descends."""

    overflow: Literal["host", "storage"] = "host"
    host_bytes: Bytes | None = None
    thresholds: Thresholds | None = None
    runtime_share: Annotated[float, Field(ge=0, le=10)] = 0.0

    def __post_init__(self) -> None:
        for before, after in pairwise(self.thresholds or ()):
            if after < before:
                what = f"thresholds: {after:,} stands behind {before:,}: a layer does not come back as KV grows"
                raise ValueError(f"{what}; an ascending list would do")

    @property
    def away(self) -> Tier:
        return self.overflow

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        layer_bytes = size.tokens * size.token_bytes
        known = thresholds(size) if self.thresholds is None else self.thresholds
        beside = min(size.layers, bisect_left(known, size.tokens))
        near = size.layers - beside
        if self.host_bytes is not None and self.overflow == "host":
            beside = min(beside, int(self.host_bytes // layer_bytes))
        tiers: list[Tier] = ["device"] * near
        tiers += [self.overflow] * beside
        tiers += ["storage"] * (size.layers - near - beside)
        return tuple(tiers)
