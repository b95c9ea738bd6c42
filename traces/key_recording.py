"""Recordings of keys and queries of a real model, token by token, for what decides by them (DynaKV 2.3)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.traces.arrays import load_arrays, save_arrays

KIND = "decoded keys"


@dataclass(frozen=True, eq=False)
class KeyRecording:
    """Keys and queries of one text: ``keys`` float[layers, KV heads, tokens, width] and ``queries`` float[layers, KV
    heads, query heads of each, tokens, width], with their rotary embedding."""

    keys: np.ndarray
    queries: np.ndarray

    def __post_init__(self) -> None:
        if self.keys.ndim != 4 or self.queries.ndim != 5 or self.keys.size == 0 or self.queries.size == 0:
            what = f"{self.keys.shape} and {self.queries.shape}"
            raise ValueError(f"keys are [layers, heads, tokens, width], queries have one dimension more, got {what}")
        if self.keys.dtype.kind != "f" or self.queries.dtype.kind != "f":
            raise ValueError(
                f"keys and queries are numbers with a point, got {self.keys.dtype} and {self.queries.dtype}"
            )
        layers, heads, _, tokens, width = self.queries.shape
        if self.keys.shape != (layers, heads, tokens, width):
            raise ValueError(f"keys {self.keys.shape} and queries {self.queries.shape} are not of the same tokens")
        if not (np.isfinite(self.keys).all() and np.isfinite(self.queries).all()):
            raise ValueError("keys and queries must hold finite numbers only")

    @property
    def width(self) -> int:
        """Numbers of a key."""
        return int(self.keys.shape[-1])

    def kinds(self, layers: int) -> int:
        """Kinds of layers that are told apart in a model of this many."""
        return min(layers, len(self.keys))

    def drawn(self, tokens: int, kinds: int, sequences: int, heads: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys float32[rows, tokens, width] and queries float32[rows, tokens, query heads, width]: rows kind by kind,
        sequence by sequence, head by head. A model with more KV heads than were recorded has some of them again; so has
        every sequence. The seed makes no difference. The last token that is said leaves no key, and need not have been
        recorded. Raises InputError for a recording with fewer tokens."""
        recorded = self.keys.shape[2]
        if tokens > recorded + 1:
            raise InputError(f"workload.recorded_keys: {recorded:,} tokens were recorded, this run has {tokens:,}")
        rows = np.ix_(np.arange(kinds), np.tile(np.arange(heads) % self.keys.shape[1], sequences))
        at = np.minimum(np.arange(tokens), recorded - 1)
        keys = self.keys[rows][:, :, at].reshape(-1, tokens, self.width)
        queries = self.queries[rows][:, :, :, at].reshape(len(keys), -1, tokens, self.width)
        return keys.astype(np.float32), queries.swapaxes(1, 2).astype(np.float32)

    def save(self, path: Path) -> None:
        save_arrays(path, KIND, keys=self.keys, queries=self.queries)

    @classmethod
    def load(cls, path: Path) -> "KeyRecording":
        """Raises InputError when the file is no such recording."""
        return load_arrays(path, KIND, ("keys", "queries"), cls)
