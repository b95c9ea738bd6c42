"""ShadowKV's index: the mean key of every KV block (arXiv 2410.21465, Section 4)."""

import torch

from kvferry.backends.live.decoding.indexes.block_vectors import BlockVectors
from kvferry.backends.live.decoding.indexes.index import by_kv_head


class Landmarks(BlockVectors):
    """A KV block's score is the query's product with the mean of its keys.

    Left out: ShadowKV's few outlier blocks, whose KV stays in memory.
    """

    per_block = 1

    def _of_blocks(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.mean(3)[None]

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        means = self.vectors(layer)[0]
        scores = by_kv_head(queries, means.shape[1]).float() @ means.mT
        return self._agreed(scores.flatten(1, 2), heads)
