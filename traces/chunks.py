"""Chunk traces: how many bits and how much attention each KV chunk (t, l, h) of a context takes.

The generator draws what SparKV III-B measured: heads with a structure of their own (local, dense), entropies
from 0 to 4 bits per value after 5-bit quantisation (Fig. 4), attention costs that differ many times over from
chunk to chunk (Fig. 3), and for video contexts a strong variation along t.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.specs.errors import unknown_name
from kvferry.traces.arrays import load_arrays, save_arrays
from kvferry.traces.chance import Source, generator

CHUNK_TOKENS = 1024
# Block-sparse attention works on this many queries times this many keys (SparKV IV-C).
QUERY_BLOCK = 128
KEY_BLOCK = 64
MAX_ENTROPY_BITS = 4.0
# Of a context that is kept once it was drawn: less than 1 MB.
_MOST_KEPT_UNITS = 65_536


def token_chunks(tokens: int, chunk_tokens: int) -> list[int]:
    """Returns the tokens of each token chunk of a context; the last may be partial."""
    return [min(chunk_tokens, tokens - start) for start in range(0, tokens, chunk_tokens)]


@dataclass(frozen=True, eq=False)
class ChunkTrace:
    """Per chunk (t, l, h), each of shape [T, L, H], unless said otherwise.

    ``entropy_bits``: bits per key or value number on the wire, 0 to 4. ``active_blocks``: blocks of 128
    queries x 64 keys that hold 98 % of the attention mass, at most the causal count of that t.
    ``tokens``: int[T], tokens of each token chunk; the last may be partial.
    """

    entropy_bits: np.ndarray
    active_blocks: np.ndarray
    tokens: np.ndarray

    def __post_init__(self) -> None:
        if self.entropy_bits.ndim != 3 or self.entropy_bits.shape != self.active_blocks.shape:
            raise ValueError(f"shapes differ: {self.entropy_bits.shape} and {self.active_blocks.shape}")
        if self.tokens.shape != self.entropy_bits.shape[:1]:
            raise ValueError(f"{self.tokens.size} token counts for {self.entropy_bits.shape[0]} token chunks")
        if self.tokens.dtype.kind not in "iu" or self.tokens.min() < 1:
            raise ValueError("token counts must be whole numbers from 1 on")
        if not (self.entropy_bits.min() >= 0 and self.entropy_bits.max() <= MAX_ENTROPY_BITS):
            raise ValueError(f"entropies must lie in 0..{MAX_ENTROPY_BITS:g} bits per value")
        if (self.active_blocks < 0).any() or (self.active_blocks > self.causal_blocks[:, None, None]).any():
            raise ValueError("active blocks must be at least 0 and at most the causal count")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(token chunks, layers, KV heads)."""
        t, l, h = self.entropy_bits.shape
        return t, l, h

    @property
    def context_tokens(self) -> np.ndarray:
        """int[T]: tokens before each token chunk."""
        return np.cumsum(self.tokens) - self.tokens

    @property
    def causal_blocks(self) -> np.ndarray:
        """int[T]: blocks that dense causal attention would compute."""
        return causal_blocks(self.tokens, self.context_tokens)

    def stream_bytes(self, values_per_token: float) -> np.ndarray:
        """Encoded size of each chunk; `values_per_token` are one head's: 2 x head_dim."""
        return self.entropy_bits * (self.tokens[:, None, None] * values_per_token / 8)

    def save(self, path: Path) -> None:
        save_arrays(
            path, "chunks", entropy_bits=self.entropy_bits, active_blocks=self.active_blocks, tokens=self.tokens
        )

    @classmethod
    def load(cls, path: Path) -> "ChunkTrace":
        """Raises InputError when the file is not a chunk trace."""
        return load_arrays(path, "chunks", ("entropy_bits", "active_blocks", "tokens"), cls)


def causal_blocks(tokens: Any, context_tokens: Any) -> Any:
    """Blocks between `tokens` queries and every key up to them, after `context_tokens` others; arrays or numbers."""
    rows = -(-tokens // QUERY_BLOCK)
    # Row i ends at key context + 128 (i + 1), or at the last token.
    full_rows = tokens // QUERY_BLOCK
    first = context_tokens // KEY_BLOCK
    full = full_rows * first + (QUERY_BLOCK // KEY_BLOCK) * full_rows * (full_rows + 1) // 2
    last = -(-(context_tokens + tokens) // KEY_BLOCK)
    return full + (rows - full_rows) * last


@dataclass(frozen=True, slots=True)
class Character:
    """What a kind of content looks like. Shares are drawn as logistic(normal): the spreads are the standard
    deviations of that normal, the medians those of the share."""

    # Bits per value over 4: its median, and how layers, heads of a layer and chunks of a head differ.
    entropy_median: float = 0.76
    entropy_layer_spread: float = 0.3
    entropy_head_spread: float = 0.6
    entropy_chunk_spread: float = 0.2
    # Heads whose keys and values hardly vary, hence compress to almost nothing, and their median.
    flat_heads: float = 0.04
    flat_median: float = 0.04
    # Key blocks next to the diagonal, and sinks, that every query block attends: between these two.
    near_blocks: tuple[float, float] = (5.0, 9.0)
    # Share of the farther blocks that are active: heads are local or wide.
    local_heads: float = 0.35
    local_median: float = 0.05
    wide_median: float = 0.4
    reach_head_spread: float = 0.5
    reach_chunk_spread: float = 0.2
    # Novelty of a token chunk: 0 (repeats what came before) to 1; scenes last 1 / scene_change chunks on
    # average. Its weight shifts the normals of entropy and reach of all heads alike.
    scene_change: float = 1.0
    novelty_entropy: float = 0.0
    novelty_reach: float = 0.0


CHARACTERS: dict[str, Character] = {
    "text": Character(),
    "vlm": Character(scene_change=0.5, novelty_entropy=2.0, novelty_reach=2.5),
}


def generate_chunks(
    content: str,
    tokens: int,
    layers: int,
    kv_heads: int,
    seed: int,
    sequence: int = 0,
    chunk_tokens: int = CHUNK_TOKENS,
) -> ChunkTrace:
    """A chunk trace of `tokens` tokens. A longer context of the same seed and sequence begins with the whole
    chunks of a shorter one; another `sequence` is other content on the same heads.

    `content` is a key of CHARACTERS; another one raises InputError.
    """
    if content not in CHARACTERS:
        raise unknown_name("content", content, CHARACTERS)
    if min(tokens, layers, kv_heads) < 1:
        raise ValueError(f"needs at least one token, layer and head, got {tokens}, {layers}, {kv_heads}")
    of_all = content, tokens, layers, kv_heads, seed, sequence, chunk_tokens
    small = -(-tokens // chunk_tokens) * layers * kv_heads <= _MOST_KEPT_UNITS
    return _kept(*of_all) if small else _generated(*of_all)


def _generated(
    content: str, tokens: int, layers: int, kv_heads: int, seed: int, sequence: int, chunk_tokens: int
) -> ChunkTrace:
    character = CHARACTERS[content]
    token_counts = np.full(-(-tokens // chunk_tokens), chunk_tokens)
    token_counts[-1] = tokens - chunk_tokens * (token_counts.size - 1)
    novelty = _novelty(character, token_counts.size, generator(Source.CHUNK_SCENES, seed, sequence))
    drawn = [_layer(character, novelty, kv_heads, seed, sequence, layer) for layer in range(layers)]
    entropy, near, reach = (np.stack(parts, axis=1) for parts in zip(*drawn, strict=True))
    context = np.cumsum(token_counts) - token_counts
    causal = causal_blocks(token_counts, context)[:, None, None]
    rows = -(-token_counts // QUERY_BLOCK)[:, None, None]
    near_blocks = np.minimum(rows * near, causal)
    active = np.rint(near_blocks + reach * (causal - near_blocks))
    return ChunkTrace(MAX_ENTROPY_BITS * entropy, active.astype(np.int32), token_counts)


@lru_cache(maxsize=64)
def _kept(*of_all: Any) -> ChunkTrace:
    """Each system of a comparison loads the same contexts, and its bounds ask for them once more."""
    chunks = _generated(*of_all)
    for shared in (chunks.entropy_bits, chunks.active_blocks, chunks.tokens):
        shared.flags.writeable = False
    return chunks


def _novelty(character: Character, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """float[T] in 0..1, constant within a scene; most scenes are either new or a repetition."""
    draws = rng.random((chunks, 2))
    begins = draws[:, 0] < character.scene_change
    begins[0] = True
    scene = np.maximum.accumulate(np.where(begins, np.arange(chunks), 0))
    # The arcsine law: most mass near 0 and near 1.
    return np.sin(0.5 * np.pi * draws[scene, 1]) ** 2


def _layer(
    character: Character, novelty: np.ndarray, kv_heads: int, seed: int, sequence: int, layer: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entropy share, near blocks per row and reach of one layer, each [T, H].

    What belongs to the model (its heads) and what to the content come from streams of their own.
    """
    chunks = novelty.size
    normal, uniform = _heads(kv_heads, seed, layer)
    surprise = (novelty - 0.5)[:, None]

    flat = uniform[0] < character.flat_heads
    entropy_head = (
        _logit(np.where(flat, character.flat_median, character.entropy_median))
        + character.entropy_layer_spread * normal[2, 0]
        + character.entropy_head_spread * normal[0]
    )
    entropy_chunk = generator(Source.CHUNK_ENTROPY, seed, sequence, layer).standard_normal((chunks, kv_heads))
    entropy = _logistic(
        entropy_head + character.novelty_entropy * surprise + character.entropy_chunk_spread * entropy_chunk
    )

    local = uniform[1] < character.local_heads
    low, high = character.near_blocks
    near = np.broadcast_to(low + (high - low) * uniform[2], (chunks, kv_heads))
    reach_head = (
        _logit(np.where(local, character.local_median, character.wide_median)) + character.reach_head_spread * normal[1]
    )
    reach_chunk = generator(Source.CHUNK_REACH, seed, sequence, layer).standard_normal((chunks, kv_heads))
    reach = _logistic(reach_head + character.novelty_reach * surprise + character.reach_chunk_spread * reach_chunk)
    return entropy, near, reach


@lru_cache(maxsize=1024)
def _heads(kv_heads: int, seed: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """What is drawn of a layer's heads, normal and uniform, each [3, H]: the same for all contents."""
    heads = generator(Source.CHUNK_HEADS, seed, layer)
    return heads.standard_normal((3, kv_heads)), heads.random((3, kv_heads))


def _logit(share: np.ndarray | float) -> np.ndarray:
    return np.log(share) - np.log1p(np.negative(share))


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
