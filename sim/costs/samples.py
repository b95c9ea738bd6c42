"""Measurements of block-sparse attention to train a predictor on: features of a chunk, and seconds."""

from dataclasses import dataclass

import numpy as np

from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.specs.model import ModelSpec
from kvferry.traces.chance import Source, generator
from kvferry.traces.chunks import CHUNK_TOKENS, generate_chunks


@dataclass(frozen=True, eq=False)
class Samples:
    """One entry per measured chunk. ``token_chunk`` counts from 1 (SparKV IV-C: a query length of 1024 t)."""

    token_chunk: np.ndarray
    active_blocks: np.ndarray
    load: np.ndarray
    seconds: np.ndarray

    def split(self, share: float, rng: np.random.Generator) -> tuple["Samples", "Samples"]:
        """At random: this share of the samples, and the rest."""
        order = rng.permutation(self.seconds.size)
        cut = round(share * order.size)
        return self._only(order[:cut]), self._only(order[cut:])

    def _only(self, rows: np.ndarray) -> "Samples":
        return Samples(self.token_chunk[rows], self.active_blocks[rows], self.load[rows], self.seconds[rows])


def measure(
    kernel: BlockSparseKernel,
    model: ModelSpec,
    seed: int,
    *,
    content: str = "text",
    count: int = 6000,
    chunks: int = 40,
    most_load: float = 0.6,
    kv_heads: int = 1,
) -> Samples:
    """`count` chunks drawn from a generated context, each timed once, at a random load, with the kernel's noise.

    Of one head each, or with `kv_heads` of a whole layer (blocks summed over its heads).
    """
    rng = generator(Source.COST_SAMPLES, seed)
    trace = generate_chunks(content, chunks * CHUNK_TOKENS, model.layers, model.kv_heads, seed)
    blocks = trace.active_blocks if kv_heads == 1 else trace.active_blocks.sum(axis=2)
    picked = rng.integers(blocks.size, size=count)
    place = np.unravel_index(picked, blocks.shape)
    load = rng.uniform(0, most_load, count)
    seconds = kernel.seconds(CHUNK_TOKENS, blocks[place], kv_heads=kv_heads, load=load)
    noise = rng.normal(0, kernel.spec.noise, count)
    return Samples(place[0] + 1, blocks[place], load, seconds * np.exp(noise))
