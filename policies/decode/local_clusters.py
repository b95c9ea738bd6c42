"""An upkeep that clusters new tokens among themselves, apart from what was clustered before (ClusterKV)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.kept_clusters import KeptClusters, KeysAhead, Maintenance, Regroup
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.policies.decode.upkeep import Learned, Update, Upkeep, new_tokens
from kvferry.policies.ledger import Holding
from kvferry.specs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class LocalClusters(Upkeep):
    """New tokens stay in memory, and attention takes them in, until there are ``window_tokens``: they become
    ``window_clusters`` clusters of their own then (DynaKV 2.3, ClusterKV)."""

    clusters = True
    after_attention: ClassVar[tuple[str, ...]] = ("maintain",)

    window_tokens: Annotated[int, Field(ge=1)] = 128
    window_clusters: Annotated[int, Field(ge=1)] = 8

    def check(self) -> None:
        if not 1 <= self.window_clusters <= self.window_tokens:
            what = f"{self.window_tokens} tokens cannot make {self.window_clusters} clusters"
            raise ValueError(f"window_clusters: {what}")

    def in_blocks(self, context: int, block_tokens: int, tokens: int) -> int:
        return tokens - max(0, tokens - context) % self.window_tokens

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        # No more than are ever new.
        return new_tokens(room, min(self.window_tokens, room.output))

    def mean_recent(self, block_tokens: int, output: int) -> float:
        return (min(self.window_tokens, output) - 1) / 2

    def start(self, context: int, block_tokens: int, layout: Any) -> "WindowedClusters":
        return WindowedClusters(layout, self.window_tokens, self.window_clusters)


class WindowedClusters(KeptClusters):
    """A run's clusters, and how many of the newest tokens belong to none yet."""

    def __init__(self, places: PlacedClusters, window_tokens: int, window_clusters: int) -> None:
        super().__init__(places)
        self.tokens = 0
        self._window_tokens, self._window_clusters = window_tokens, window_clusters
        # By layer, tokens [rows, clusters] of the clusters that this step makes.
        self._made: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}

    def recent(self, layer: int) -> int:
        return self.tokens

    def maintain(self, layer: int, ids: np.ndarray | None, squared: np.ndarray | None, found: Lookup) -> Maintenance:
        if self.tokens + 1 < self._window_tokens:
            return ()
        return Regroup(self._window_tokens, self._clusters(layer), self.places.most(layer))

    def maintain_like(self, layers: Sequence[int], first: int) -> None:
        """Nothing is decided by layers."""

    def maintained(self, layer: int, found: SplitParts | Clustered) -> None:
        assert isinstance(found, Clustered)
        self._made[layer] = found.tokens, found.labels

    def append(self, learned: Learned) -> Update:
        layers, rows, _ = self.places.shape
        self.tokens += 1
        nothing = [BlockRows.of((), rows)] * layers
        if self.tokens < self._window_tokens:
            return Update(changed=nothing, joined=[None] * layers)
        self.tokens, first, clusters = 0, self.places.most(0), self._made[0][0].shape[1]
        changes = [change for layer in range(layers) for change in self._opened(layer, *self._made[layer])]
        self._made.clear()
        made = [(row, first + block) for row in range(rows) for block in range(clusters)]
        changes = Pieces.in_turns(changes)
        return Update(changed=nothing, joined=[()] * layers, made=[made] * layers, changes=changes)

    def skip(self, tokens: int, stored: int, keys: KeysAhead, wanted: Callable[[int], float]) -> None:
        layers, rows, _ = self.places.shape
        for _ in range(tokens):
            keys.go_on()
            self.tokens += 1
            if self.tokens == self._window_tokens:
                made, found = keys.group(self._window_tokens, self._clusters(0), self.places.most(0))
                by_kind, labels = (of.reshape(keys.kinds, rows, -1) for of in (made, found))
                # Layer by layer, as ``append`` does: a row's clusters lie beside each other.
                for layer in range(layers):
                    self._opened(layer, by_kind[layer % keys.kinds], labels[layer % keys.kinds])
                self.tokens = 0

    def _clusters(self, layer: int) -> int:
        """Returns the clusters of a window, as far as rows have room. InputError when they have none."""
        free = self.places.room - self.places.most(layer)
        if not free:
            what = f"a row has room for {self.places.room} blocks, and has them"
            raise InputError(f"policies.layout: {what}; a larger room, or fewer window_clusters, would do")
        return min(self._window_clusters, free)

    def _opened(self, layer: int, tokens: np.ndarray, labels: np.ndarray | None) -> list[Pieces]:
        """Returns new clusters of every row [rows, clusters], and the one of each new token [rows, tokens]."""
        found: list[Pieces] = []
        for row, of_row in enumerate(tokens.tolist()):
            found += self.places.open_together(layer, row, of_row, None if labels is None else labels[row])
        return found
