"""Quest's index: the least and the largest of every number of the keys in a KV block (arXiv 2406.10774, Section 3)."""

import torch

from kvferry.backends.live.decoding.indexes.block_vectors import BlockVectors
from kvferry.backends.live.decoding.indexes.index import by_kv_head


class PageBounds(BlockVectors):
    """A KV block's score is the most that the query's product with any key between the bounds can be, and thus never
    less than that with a key of the block."""

    per_block = 2

    def _of_blocks(self, keys: torch.Tensor) -> torch.Tensor:
        return torch.stack((keys.amin(3), keys.amax(3)))

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        least, largest = self.vectors(layer)
        by_head = by_kv_head(queries, least.shape[1]).float()
        # A negative number of the query makes most of the least number of a key.
        bounds = by_head.clamp(min=0) @ largest.mT + by_head.clamp(max=0) @ least.mT
        return self._agreed(bounds.flatten(1, 2), heads)
