"""A ledger of memory: who takes how much of which tier, by name, as sequences grow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kvferry.specs.tier import Tier
from kvferry.specs.units import shown_size

# What KV is chosen and rebuilt by, of all that the group "kv" has.
METADATA = ("kv: index", "kv: index weights", "kv: low-rank keys")
# New tokens of every layer that belong to no KV block yet, or never do.
NEW_TOKENS = "kv: new tokens"
# Memory that stays unused on purpose: it is held, and is no part of a peak.
KEPT_FREE = "kept free"


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory of one purpose. ``name``: shown to users; what stands before a colon is its group: "kv" is that of KV, of
    what it is chosen by, and of copies of it. ``n_bytes``: with so
    many tokens of every sequence, of each sequence or of the whole batch, as ``per`` says."""

    name: str
    n_bytes: Callable[[int], float]
    per: Literal["batch", "sequence"] = "batch"
    tier: Tier = "device"

    @classmethod
    def of(cls, name: str, n_bytes: float, per: Literal["batch", "sequence"] = "batch") -> "Holding":
        """Returns memory of the processor that does not grow."""
        return cls(name, lambda tokens: n_bytes, per)


@dataclass(frozen=True)
class Ledger:
    """All holdings of a batch of ``sequences`` sequences, or some of them."""

    holdings: tuple[Holding, ...]
    sequences: int = 1

    def at(self, tokens: int, tier: Tier = "device") -> dict[str, float]:
        """Returns the bytes of one tier by name, once every sequence has `tokens` tokens."""
        found: dict[str, float] = {}
        for one in self.holdings:
            if one.tier == tier:
                times = self.sequences if one.per == "sequence" else 1
                found[one.name] = found.get(one.name, 0.0) + times * one.n_bytes(tokens)
        return found

    def n_bytes(self, tokens: int, tier: Tier = "device") -> float:
        """Returns the sum of a tier's holdings."""
        return sum(self.at(tokens, tier).values())

    def of(self, *names: str) -> "Ledger":
        """Returns the holdings of these names alone."""
        return replace(self, holdings=tuple(one for one in self.holdings if one.name in names))

    def without(self, *names: str) -> "Ledger":
        """Returns the holdings of other names."""
        return replace(self, holdings=tuple(one for one in self.holdings if one.name not in names))

    def largest(self, tokens: int, tier: Tier = "device", most: int = 3) -> str:
        """Returns the largest holdings of a tier in words, the largest first."""
        return largest(self.at(tokens, tier), most)


def largest(n_bytes: Mapping[str, float], most: int = 3) -> str:
    """Returns the largest of some holdings in words, the largest first."""
    ranked = sorted(((size, name) for name, size in n_bytes.items() if size), reverse=True)
    return ", ".join(f"{name} {shown_size(size)}" for size, name in ranked[:most])
