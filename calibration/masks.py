"""Attention masks of a given density, drawn at random: what an op takes depends on how many blocks, hardly on which."""

import numpy as np

from kvferry.model.block_masks import BlockMasks
from kvferry.specs.model import ModelSpec
from kvferry.traces.chance import Source, generator
from kvferry.traces.chunks import CHUNK_TOKENS, KEY_BLOCK, QUERY_BLOCK


def drawn_masks(spec: ModelSpec, before: int, tokens: int, density: float | np.ndarray) -> BlockMasks:
    """For the last token chunk, `density` of its causal blocks, the diagonal always in; nothing for those before it.

    Of all layers and heads alike, or float[layers, KV heads], for as many layers as that has.
    """
    rng = generator(Source.MEASURED_MASKS, 0, before, tokens)
    by_layer = np.broadcast_to(density, (spec.layers, spec.kv_heads)) if np.ndim(density) == 0 else np.asarray(density)
    counts = np.array([CHUNK_TOKENS] * (before // CHUNK_TOKENS) + [tokens])
    ends = np.cumsum(counts)
    active = {
        (t, l): _drawn(rng, before, tokens, by_layer[l])
        if t == counts.size - 1
        else np.zeros((spec.kv_heads, -(-int(counts[t]) // QUERY_BLOCK), -(-int(ends[t]) // KEY_BLOCK)), bool)
        for t in range(counts.size)
        for l in range(len(by_layer))
    }
    return BlockMasks.of(active, counts)


def _drawn(rng: np.random.Generator, before: int, tokens: int, densities: np.ndarray) -> np.ndarray:
    """bool[heads, rows, columns]: per head as many blocks as its share comes to, at least the diagonal's."""
    first = np.arange(0, tokens, QUERY_BLOCK)
    last = before + np.minimum(first + QUERY_BLOCK, tokens) - 1
    columns = np.arange(-(-(before + tokens) // KEY_BLOCK))
    causal = columns <= last[:, None] // KEY_BLOCK
    diagonal = causal & (columns >= (before + first[:, None]) // KEY_BLOCK)
    wanted = np.maximum(np.round(densities * int(causal.sum())).astype(int), int(diagonal.sum()))
    # The diagonal first, the other causal blocks in random order, what is not causal never.
    order = np.where(diagonal, -1.0, np.where(causal, rng.random((densities.size, *causal.shape)), np.inf))
    least = np.take_along_axis(np.sort(order.reshape(densities.size, -1)), wanted[:, None] - 1, axis=1)
    chosen: np.ndarray = order <= least[:, :, None]
    return chosen
