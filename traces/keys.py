"""Key streams: the key vectors of a context, as a real model made them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvferry.traces.arrays import load_arrays, save_arrays


@dataclass(frozen=True, eq=False)
class KeyStream:
    """``vectors``: float32[layers, heads, tokens, dimensions], in the order of the tokens."""

    vectors: np.ndarray

    def __post_init__(self) -> None:
        if self.vectors.ndim != 4 or self.vectors.size == 0:
            raise ValueError(f"vectors must be [layers, heads, tokens, dimensions], got {self.vectors.shape}")
        if not np.isfinite(self.vectors).all():
            raise ValueError("a vector must hold finite numbers only")

    def save(self, path: Path) -> None:
        save_arrays(path, "keys", vectors=self.vectors)

    @classmethod
    def load(cls, path: Path) -> "KeyStream":
        """Raises InputError when the file is not a key stream."""
        return load_arrays(path, "keys", ("vectors",), cls)
