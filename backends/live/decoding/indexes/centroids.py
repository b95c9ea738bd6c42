"""Centroids of clusters of like keys, kept up to date as keys join and clusters are split (DynaKV 4)."""

from typing import Self

import numpy as np
import torch

from kvferry.backends.live.decoding.indexes.index import Index, by_kv_head
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.cluster_table import ClusterTable
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.means import kmeans


class Centroids(Index):
    """Clusters of every row: a sequence, or a part of its KV heads that chooses for itself. A cluster scores by its
    centroid's product with the query; the numbers are those of the modelled world's clusters."""

    def __init__(
        self, spec: IndexSpec, *, layers: int, kv_heads: int, head_dim: int, sequences: int, room_tokens: int
    ) -> None:
        super().__init__(spec, layers=layers, head_dim=head_dim)
        self._kv_heads = kv_heads
        self._layers = layers
        self._shape = sequences * spec.heads, room_tokens // spec.block_tokens, kv_heads // spec.heads * head_dim
        self.clear()

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        """The sample is not needed."""
        return cls(
            spec,
            layers=decoder.layers,
            kv_heads=decoder.heads,
            head_dim=decoder.head_dim,
            sequences=sequences,
            room_tokens=room_tokens,
        )

    def clear(self) -> None:
        # The prompts' keys, until they are clustered.
        self._queries: dict[int, torch.Tensor] = {}
        self.tables = [ClusterTable(*self._shape) for _ in range(self._layers)]

    @property
    def n_bytes(self) -> int:
        """Returns the bytes of the clusters that exist now, in single precision. Memory for later ones is reserved, and
        used once they exist."""
        return sum(int(table.used.sum()) * table.means.shape[-1] * 4 for table in self.tables)

    def blocks(self, layer: int) -> int:
        """Returns the number of clusters of the row that has the most. The answers of other rows end with clusters that
        do not exist."""
        return int(self.tables[layer].used.max())

    def sizes(self, layer: int, row: int) -> list[int]:
        """Returns the number of keys in each cluster of a row, without waiting ones."""
        table = self.tables[layer]
        return [int(n) for n in table.counts[row, : table.used[row]]]

    def centroids(self, layer: int, row: int) -> torch.Tensor:
        """Returns float32[clusters, numbers of a row's keys]"""
        table = self.tables[layer]
        return torch.from_numpy(table.means[row, : table.used[row]]).float()

    def prefill(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        """Keys are clustered by an op of its own, which may ask for queries."""
        self._queries[layer] = queries
        return None

    def references(self, layer: int, queries: int, k: int) -> np.ndarray | None:
        """Returns int[rows, queries, k]: the best clusters of each of the prompts' last queries; None: of none. They
        are not kept longer."""
        of_prompts = self._queries.pop(layer)
        if not queries:
            return None
        last = range(max(0, of_prompts.shape[2] - queries), of_prompts.shape[2])
        scores = [self.scores(layer, of_prompts[:, :, at : at + 1], self.spec.heads) for at in last]
        return torch.stack([of_one.topk(k, dim=-1).indices.flatten(0, 1) for of_one in scores], dim=1).numpy()

    def cluster(self, layer: int, keys: np.ndarray, clusters: int, first: int) -> np.ndarray:
        """Makes `clusters` of keys [rows, tokens, numbers], from number `first` on; returns each token's cluster,
        counted from there, int32[rows, tokens]."""
        labels = kmeans(keys, clusters)
        self.tables[layer].fill(np.arange(len(keys)), keys, labels, first)
        return labels

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        table, most = self.tables[layer], self.blocks(layer)
        means = torch.from_numpy(table.means[:, :most]).float().unflatten(0, (-1, self.spec.heads))
        by_head = by_kv_head(queries, self._kv_heads).float().cpu()
        shares = means.unflatten(-1, (self._kv_heads // self.spec.heads, -1)).transpose(2, 3).flatten(1, 2)
        scores = (by_head @ shares.mT).flatten(1, 2)  # sequences, query heads, clusters
        there = torch.from_numpy(table.counts[:, :most] > 0).unflatten(0, (-1, self.spec.heads))
        of_query_heads = there.repeat_interleave(scores.shape[1] // self.spec.heads, 1)
        return self._agreed(scores.masked_fill(~of_query_heads, -torch.inf), heads).masked_fill(~there, -torch.inf)

    def nearest(self, layer: int, keys: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """int32 and float64[sequences, heads]: the clusters whose centroids are nearest to keys [sequences, KV heads,
        1, head_dim] of one token, and the squared distances."""
        by_part = keys.float().cpu().unflatten(1, (self.spec.heads, -1))
        by_row = by_part.transpose(2, 3).flatten(3).flatten(0, 1).numpy()
        ids, squared = self.tables[layer].nearest(slice(None), by_row[:, 0])
        return ids.astype(np.int32).reshape(-1, self.spec.heads), squared.reshape(-1, self.spec.heads)

    def join(self, layer: int, row: int, block: int, key: np.ndarray) -> None:
        """A key [numbers] joins a cluster."""
        self.tables[layer].join(np.array([row]), np.array([block]), key[None])

    def set(self, layer: int, row: int, block: int, keys: np.ndarray) -> float:
        """A cluster's keys are these [keys, numbers]: their variance."""
        table = self.tables[layer]
        table.set(row, block, keys)
        return float(table.squares[row, block]) / len(keys)
