"""An upkeep that clusters all tokens again now and then: what other upkeeps are measured by (DynaKV 2.3)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.cluster_upkeep import StaticClusters
from kvferry.policies.decode.kept_clusters import KeysAhead, Maintenance, OfStep, Regroup
from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.policies.decode.upkeep import Learned, Update


@dataclass(frozen=True, kw_only=True)
class GlobalClusters(StaticClusters):
    """Reads all KV of a row every ``every_tokens`` tokens and clusters it again, at the mean size of the context's
    clusters; between, new keys join the nearest. An oracle: decoding cannot afford to read all KV so often."""

    every_tokens: Annotated[int, Field(ge=1)] = 256

    def check(self) -> None:
        if self.every_tokens < 1:
            raise ValueError(f"every_tokens is 1 or more, got {self.every_tokens}")

    def start(self, context: int, block_tokens: int, layout: Any) -> "RegroupedClusters":
        return RegroupedClusters(layout, block_tokens, self.every_tokens)


class RegroupedClusters(MaintainedClusters):
    """A run's clusters, and how many tokens have come since they were made."""

    def __init__(self, places: PlacedClusters, block_tokens: int, every_tokens: int) -> None:
        super().__init__(places, threshold=math.inf, buffer_tokens=0, most_tokens=None)
        self._block_tokens, self._every_tokens, self._since = block_tokens, every_tokens, 0
        self._made: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def _due(self) -> bool:
        return self._since + 1 >= self._every_tokens

    def _regroup(self, tokens: int, read: BlockRows | None = None) -> Regroup:
        return Regroup(tokens, min(max(1, tokens // self._block_tokens), self.places.room), 0, whole=True, read=read)

    def maintain_each(self, steps: Sequence[OfStep]) -> Sequence[Maintenance]:
        return [self._all(step.layer, step.found) for step in steps] if self._due else super().maintain_each(steps)

    def _all(self, layer: int, found: Lookup) -> Regroup:
        held = self.places.all_tokens[layer]
        there = held > 0
        there[found.wanted.places] = False
        absent = BlockRows.where(there)
        return self._regroup(int(held[0].sum()) + 1, absent if absent.ids.size else None)

    def maintain_like(self, layers: Sequence[int], first: int) -> None:
        if not self._due:
            super().maintain_like(layers, first)

    def maintained(self, layer: int, found: SplitParts | Clustered) -> None:
        if self._due:
            self._made[layer] = found.tokens, found.variances
        else:
            super().maintained(layer, found)

    def append(self, learned: Learned) -> Update:
        if not self._due:
            self._since += 1
            return super().append(learned)
        self._since = 0
        changes = [self._refill(layer, *self._made[layer]) for layer in sorted(self._made)]
        held = [tokens > 0 for _, (tokens, _) in sorted(self._made.items())]
        made = [list(zip(*(of.tolist() for of in np.nonzero(there)), strict=True)) for there in held]
        changed = [BlockRows.where(there) for there in held]
        self._made.clear()
        return Update(changed=changed, joined=[()] * len(held), made=made, changes=Pieces.in_turns(changes))

    def skip(self, tokens: int, stored: int, keys: KeysAhead, wanted: Callable[[int], float]) -> None:
        layers, rows, _ = self.places.shape
        while tokens:
            joining = min(tokens, self._every_tokens - 1 - self._since)
            super().skip(joining, stored, keys, wanted)
            self._since, stored, tokens = self._since + joining, stored + joining, tokens - joining
            if tokens:
                keys.go_on()
                stored, tokens, self._since = stored + 1, tokens - 1, 0
                regroup = self._regroup(stored)
                made = keys.group(stored, regroup.clusters, 0)[0].reshape(keys.kinds, rows, -1)
                for layer in range(layers):
                    of_kind = made[layer % keys.kinds]
                    self._refill(layer, of_kind, np.zeros(of_kind.shape))

    def _refill(self, layer: int, tokens: np.ndarray, variances: np.ndarray) -> Pieces:
        self.splitting.variances[layer, :, : variances.shape[1]] = variances
        return self.places.refilled(layer, tokens)
