"""Attention masks of a given density, drawn at random: what an op takes depends on how many blocks, hardly on which."""

import numpy as np

from kvferry.backends.live.block_masks import BlockMasks
from kvferry.specs.model import ModelSpec
from kvferry.traces.chunks import CHUNK_TOKENS, KEY_BLOCK, QUERY_BLOCK


def drawn_masks(spec: ModelSpec, before: int, tokens: int, density: float) -> BlockMasks:
    """For the last token chunk, `density` of its causal blocks, the diagonal always in; nothing for those before it."""
    rng = np.random.default_rng([before, tokens])
    counts = np.array([CHUNK_TOKENS] * (before // CHUNK_TOKENS) + [tokens])
    ends = np.cumsum(counts)
    active = {
        (t, l): _drawn(rng, before, tokens, density, spec.kv_heads)
        if t == counts.size - 1
        else np.zeros((spec.kv_heads, -(-int(counts[t]) // QUERY_BLOCK), -(-int(ends[t]) // KEY_BLOCK)), bool)
        for t in range(counts.size)
        for l in range(spec.layers)
    }
    return BlockMasks.of(active, counts)


def _drawn(rng: np.random.Generator, before: int, tokens: int, density: float, heads: int) -> np.ndarray:
    """bool[heads, rows, columns]: per head as many blocks as that share comes to, at least the diagonal's."""
    first = np.arange(0, tokens, QUERY_BLOCK)
    last = before + np.minimum(first + QUERY_BLOCK, tokens) - 1
    columns = np.arange(-(-(before + tokens) // KEY_BLOCK))
    causal = columns <= last[:, None] // KEY_BLOCK
    diagonal = causal & (columns >= (before + first[:, None]) // KEY_BLOCK)
    wanted = round(density * int(causal.sum()))
    # The diagonal first, the other causal blocks in random order, what is not causal never.
    order = np.where(diagonal, -1.0, np.where(causal, rng.random((heads, *causal.shape)), np.inf))
    least = np.sort(order.reshape(heads, -1))[:, max(wanted, int(diagonal.sum())) - 1]
    chosen: np.ndarray = order <= least[:, None, None]
    return chosen
