"""Key streams: key vectors as a context grows, gathered around centres that drift.

What cluster-based retrieval meets: keys lie in clusters, neighbouring tokens often in the same one, and the
clusters of a long generation move away from those found in the prompt.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvferry.traces.arrays import load_arrays, save_arrays
from kvferry.traces.chance import Source, generator

# Tokens per step of a centre's random walk, which is straight in between.
EPOCH_TOKENS = 256


@dataclass(frozen=True, eq=False)
class KeyStream:
    """``vectors``: float32[layers, heads, tokens, dimensions], in the order of the tokens."""

    vectors: np.ndarray

    def __post_init__(self) -> None:
        if self.vectors.ndim != 4 or self.vectors.size == 0:
            raise ValueError(f"vectors must be [layers, heads, tokens, dimensions], got {self.vectors.shape}")
        if not np.isfinite(self.vectors).all():
            raise ValueError("a vector must hold finite numbers only")

    def strangeness(self, window: int) -> np.ndarray:
        """float[windows]: mean squared distance of the keys in each later window of tokens to the nearest key of
        the first one, over the mean squared length; over layers and heads. It grows with drift."""
        first = self.vectors[:, :, :window]
        length = float((self.vectors**2).sum(axis=-1).mean())
        starts = range(window, self.vectors.shape[2] - window + 1, window)
        return np.array([_nearest(self.vectors[:, :, n : n + window], first).mean() for n in starts]) / length

    def save(self, path: Path) -> None:
        save_arrays(path, "keys", vectors=self.vectors)

    @classmethod
    def load(cls, path: Path) -> "KeyStream":
        """Raises InputError when the file is not a key stream."""
        return load_arrays(path, "keys", ("vectors",), cls)


def generate_keys(
    tokens: int,
    layers: int,
    heads: int,
    dimensions: int,
    seed: int,
    *,
    clusters: int = 32,
    spread: float = 0.5,
    drift: float = 0.1,
    scene_tokens: float = 16.0,
    sequence: int = 0,
) -> KeyStream:
    """Keys around `clusters` centres of unit variance per dimension, with noise of standard deviation `spread`; a
    longer stream of the same seed and sequence begins with a shorter one.

    A run of neighbouring tokens stays with one centre for `scene_tokens` on average. Every centre walks at
    random: by `drift` per dimension in EPOCH_TOKENS tokens.
    """
    if min(tokens, layers, heads, dimensions, clusters) < 1 or scene_tokens < 1:
        raise ValueError("counts and scene_tokens must be at least 1")
    vectors = np.empty((layers, heads, tokens, dimensions), np.float32)
    epoch, part = np.divmod(np.arange(tokens), EPOCH_TOKENS)
    part = (part / EPOCH_TOKENS)[:, None]
    # All heads of a sequence see the same text, so they change centres at the same tokens.
    changes = generator(Source.KEY_SCENES, seed, sequence).random(tokens) < 1 / scene_tokens
    changes[0] = True
    since = np.maximum.accumulate(np.where(changes, np.arange(tokens), 0))
    for layer in range(layers):
        for head in range(heads):
            centres = generator(Source.KEY_CENTRES, seed, layer, head).standard_normal((clusters, dimensions))
            walks = generator(Source.KEY_WALKS, seed, sequence, layer, head)
            steps = walks.standard_normal((int(epoch[-1]) + 1, clusters, dimensions))
            walked = drift * np.concatenate([np.zeros((1, clusters, dimensions)), np.cumsum(steps, axis=0)])
            noise = generator(Source.KEY_NOISE, seed, sequence, layer, head)
            centre = generator(Source.KEY_CHOICES, seed, sequence, layer, head).integers(clusters, size=tokens)[since]
            there = centres[centre] + (1 - part) * walked[epoch, centre] + part * walked[epoch + 1, centre]
            vectors[layer, head] = there + spread * noise.standard_normal((tokens, dimensions))
    return KeyStream(vectors)


def _nearest(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Squared distance of each key to the nearest of the others, [layers, heads, keys]."""
    squares = (keys**2).sum(axis=-1)[..., :, None] + (others**2).sum(axis=-1)[..., None, :]
    return np.maximum(squares - 2 * keys @ others.swapaxes(-1, -2), 0).min(axis=-1)
