"""Modelled size of a stored context, by codec: bytes of every KV chunk (t, l, h) and of every quality level.

All start from ``entropy_bits[T, L, H]``: bits per key or value number after uniform 5-bit quantisation
(SparKV III-B, Fig. 4), and from ``values``: how many such numbers a chunk holds, [T] or anything that
broadcasts to [T, L, H] (tokens x 2 x head_dim).

Entropies become code lengths, and entropies at coarser steps, through one model of what is coded: a Gaussian
quantised in steps. A quarter of its standard deviation gives the 4 bits at which Fig. 4 ends, and the 32 levels
then reach four deviations; chunks of lower entropy have outliers that widen the step. Left out: CacheGen's
differences between tokens, which would lower the entropies themselves.
"""

import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from importlib.resources import files
from math import erf, sqrt
from typing import NamedTuple

import numpy as np

# Of a value of KV where a run says nothing else.
FULL_KV_BITS = 16
_SYMBOLS = 32
# Per channel of a chunk a 16-bit scale and a 16-bit offset, for the numbers of 1,024 tokens.
_SCALE_BITS = 32 / 1024
# A canonical Huffman code is sent as one 5-bit length per symbol.
_TABLE_BITS = 5 * _SYMBOLS
# The bytes of a range coder's last state. Its model is trained offline, per layer and channel, and not sent.
_FLUSH_BITS = 32
_CACHEGEN_LEVELS = 5
# Shares of the layers, from the first on, whose keys and values keep 32 levels; the others get 16. CacheGen's
# published configuration (LMCache, CacheGenConfig: 10 and 2 of 32 layers), as SparKV prints none.
FINE_KEYS, FINE_VALUES = 10 / 32, 2 / 32


@dataclass(frozen=True)
class Encoding:
    """Sizes in the store: ``encoded_bytes[T, L, H]`` at level 0, the best quality, and every level's total
    relative to that, descending. Without entropy coding nothing has to be decompressed: scales and offsets
    are applied where the numbers are used."""

    encoded_bytes: np.ndarray
    level_scale: tuple[float, ...] = (1.0,)
    entropy_coded: bool = True


def huffman(entropy_bits: np.ndarray, values: np.ndarray | int) -> Encoding:
    """SparKV: uniform 5-bit quantisation, then a Huffman code of its own for each chunk.

    Such a code spends at least one bit on a number unless all are equal: chunks of little entropy cost more.
    """
    _, entropy, length = _gaussian_codes()
    return Encoding(_bytes(np.interp(entropy_bits, entropy, length) + _SCALE_BITS, _TABLE_BITS, values))


def layerwise(entropy_bits: np.ndarray, values: np.ndarray | int) -> Encoding:
    """SparKV as its Section V has it, quantised by layer: as `huffman`, with half the levels in deeper layers.

    A step twice as wide saves one bit per number; half of the bits where there are fewer than two.
    """
    fine = huffman(entropy_bits, values).encoded_bytes
    coarse = huffman(np.maximum(entropy_bits - 1, entropy_bits / 2), values).encoded_bytes
    depth = np.arange(entropy_bits.shape[1]) / entropy_bits.shape[1]
    share = ((depth < FINE_KEYS) + 1.0 * (depth < FINE_VALUES))[None, :, None] / 2
    return Encoding(share * fine + (1 - share) * coarse)


def cachegen(entropy_bits: np.ndarray, values: np.ndarray | int) -> Encoding:
    """CacheGen: arithmetic coding, close to the entropy, at five levels of quantisation.

    Level 0 quantises as `huffman` does. Each further level's step is sqrt(2) times wider, which saves up to half
    a bit per number: five doublings would leave nothing of numbers that begin with 3 bits.
    """
    log_step, entropy, _ = _gaussian_codes()
    step = np.interp(entropy_bits, entropy, log_step)
    coarser = (np.interp(step + k / 2, log_step[::-1], entropy[::-1]) for k in range(1, _CACHEGEN_LEVELS))
    sizes = [_bytes(bits + _SCALE_BITS, _FLUSH_BITS, values) for bits in (entropy_bits, *coarser)]
    return Encoding(sizes[0], tuple(float(size.sum() / sizes[0].sum()) for size in sizes))


def kivi(entropy_bits: np.ndarray, values: np.ndarray | int) -> Encoding:
    """KIVI: two bits per number whatever its content, with a 16-bit scale and zero point for every 32."""
    return Encoding(_bytes(np.full(entropy_bits.shape, 2 + 32 / 32), 0.0, values), entropy_coded=False)


def fp16(entropy_bits: np.ndarray, values: np.ndarray | int) -> Encoding:
    """The numbers as they lie in memory."""
    return Encoding(_bytes(np.full(entropy_bits.shape, 16.0), 0.0, values), entropy_coded=False)


Codec = Callable[[np.ndarray, np.ndarray | int], Encoding]
CODECS: dict[str, Codec] = {
    "huffman": huffman,
    "layerwise": layerwise,
    "cachegen": cachegen,
    "kivi": kivi,
    "fp16": fp16,
}


def _bytes(bits_per_value: np.ndarray, bits_per_chunk: float, values: np.ndarray | int) -> np.ndarray:
    counts = np.asarray(values, dtype=float)
    if counts.ndim == 1:
        counts = counts[:, None, None]
    sizes: np.ndarray = (bits_per_value * counts + bits_per_chunk) / 8
    return sizes


@lru_cache(maxsize=1)
def _gaussian_codes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a Gaussian quantised ever more finely: log2 of the step in deviations (descending), and in bits per
    number the entropy and the mean length of a Huffman code (both ascending from 0)."""
    log_steps = np.arange(3.0, -2.1, -0.05)
    entropies, lengths = [], []
    for log_step in log_steps:
        probabilities = _level_probabilities(2.0**log_step)
        entropies.append(-sum(p * np.log2(p) for p in probabilities if p > 0))
        lengths.append(_huffman_length(probabilities))
    # Wider still, and every number falls on one level: no bits at all.
    return np.append(3.05, log_steps), np.append(0.0, entropies), np.append(0.0, lengths)


def _level_probabilities(step: float) -> list[float]:
    """Shares of a standard Gaussian on levels `step` apart, one at 0; the outermost take what lies beyond."""
    edges = (np.arange(_SYMBOLS - 1) - _SYMBOLS / 2 + 0.5) * step
    below = [0.0, *((1 + erf(edge / sqrt(2))) / 2 for edge in edges), 1.0]
    return [high - low for low, high in itertools.pairwise(below)]


def _huffman_length(probabilities: list[float]) -> float:
    """Mean code length: the sum of the weights of all inner nodes of the tree."""
    heap = [p for p in probabilities if p > 0]
    heapify(heap)
    total = 0.0
    while len(heap) > 1:
        joined = heappop(heap) + heappop(heap)
        total += joined
        heappush(heap, joined)
    return total


class Distortion(NamedTuple):
    """``relative_error``: root mean square of the difference, over that of the numbers. ``kl_nats``: mean divergence of
    the next-token distribution from that over the exact KV."""

    relative_error: float
    kl_nats: float


@lru_cache(maxsize=1)
def measured() -> dict[str, tuple[Distortion, ...]]:
    """The measured distortion by codec, of every level from the best on."""
    found: dict[str, list[Distortion]] = {}
    table = (files("kvferry.codecs") / "distortion.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):
        levels = found.setdefault(row["codec"], [])
        assert int(row["level"]) == len(levels), row
        levels.append(Distortion(float(row["relative_error"]), float(row["kl_nats"])))
    return {codec: tuple(levels) for codec, levels in found.items()}


def of_mixture(codec: str, shares: Mapping[int, float]) -> Distortion | None:
    """The distortion of KV whose parts came in these shares at these levels, while the rest was computed. Squared
    errors add up, and so do divergences as long as they are small. None for a codec that was not measured."""
    levels = measured().get(codec)
    if levels is None:
        return None
    error = mixed_error([one.relative_error for one in levels], shares)
    return Distortion(error, sum(share * levels[level].kl_nats for level, share in shares.items()))


def mixed_error(by_level: Sequence[float], shares: Mapping[int, float]) -> float:
    """Returns the relative error of KV whose parts came in these shares at levels with these errors."""
    square: float = sum(share * by_level[level] ** 2 for level, share in shares.items())
    return square**0.5
