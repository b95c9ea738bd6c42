"""An index of one's own: what is kept of keys, and how it scores KV blocks. It brings a selector of its name.

    kvferry run kvswap/throughput --plugin example_policy.py --system quest --set policies.selector=example-policy

kvferry.policies.decode.key_index says what an index is asked. A real run hands it the model's keys and queries, the
modelled world draws them (workload.keys): what it scores best is what is read in both.
"""

import numpy as np

from kvferry.policies.decode.key_index import IndexShape, KeyIndex


class ExamplePolicy(KeyIndex):
    """One mean key per block, as landmarks have it, and a bonus for blocks that attention has often gone to (H2O)."""

    # Parameters behind the shape are those of its selector: policies: {selector: {name: example-policy, bonus: 0.5}}.
    def __init__(self, shape: IndexShape, bonus: float = 0.1) -> None:
        super().__init__(shape)
        self.bonus = bonus
        rows = (shape.layers, shape.sequences, shape.kv_heads, shape.room_blocks)
        self.means = np.zeros((*rows, shape.head_dim), np.float32)
        self.seen = np.zeros((shape.layers, shape.sequences, shape.heads, shape.room_blocks), np.float32)

    @staticmethod
    def price(block_tokens: int, key_width: int) -> tuple[int, int]:
        """Returns how many vectors are kept and scored per block, and the numbers of each: a key, and the bonus."""
        return 1, key_width + 1

    def keep(self, layer: int, block: int, keys: np.ndarray) -> None:
        """Take in the keys [sequences, KV heads, tokens, head_dim] of further whole blocks, the first is `block`."""
        sequences, heads, _, head_dim = keys.shape
        means = keys.reshape(sequences, heads, -1, self.shape.block_tokens, head_dim).mean(3)
        self.means[layer, :, :, block : block + means.shape[2]] = means

    def scores(self, layer: int, queries: np.ndarray, blocks: int) -> np.ndarray:
        """Returns [sequences, query heads, blocks] for the queries [sequences, query heads, head_dim] of a token."""
        shape = self.shape
        by_head = queries.reshape(shape.sequences, shape.kv_heads, -1, shape.head_dim)
        products = np.einsum("bknd,bkgd->bkgn", self.means[layer, :, :, :blocks], by_head)
        products = products.reshape(shape.sequences, shape.heads, -1, blocks)
        # The bonus is of all query heads that choose together.
        bonus = self.bonus * self.seen[layer, :, :, None, :blocks]
        return (products + bonus).reshape(shape.sequences, -1, blocks)

    def attended(self, layer: int, ids: np.ndarray, weights: np.ndarray) -> None:
        """Learn which blocks [sequences, heads, k] attention took in, and the share of it that each got."""
        seen = self.seen[layer]
        np.put_along_axis(seen, ids, np.take_along_axis(seen, ids, 2) + weights, 2)


# What this file has, by kind and name.
KVFERRY = {"index": {"example-policy": ExamplePolicy}}
