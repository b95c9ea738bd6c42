"""Which attention blocks of a stored context matter: small enough to travel with its KV."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kvferry.traces.arrays import load_arrays, save_arrays
from kvferry.traces.chunks import KEY_BLOCK, QUERY_BLOCK


class BlockMasks:
    """Per token chunk and layer bool[KV heads, query blocks, key blocks], kept as bits."""

    def __init__(self, tokens: np.ndarray, layers: int, heads: int, bits: np.ndarray) -> None:
        rows = -(-tokens // QUERY_BLOCK)
        columns = -(-np.cumsum(tokens) // KEY_BLOCK)
        self._tokens, self._layers, self._heads, self._bits = tokens, layers, heads, bits
        self._shapes = [(heads, int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
        sizes = -(-heads * rows * columns // 8)
        self._begins = layers * (np.cumsum(sizes) - sizes)
        self._sizes = sizes
        if bits.dtype != np.uint8 or bits.shape != (layers * int(sizes.sum()),):
            raise ValueError(f"{bits.shape} {bits.dtype} are not the {layers * int(sizes.sum())} bytes of these masks")

    @classmethod
    def of(cls, active: Mapping[tuple[int, int], np.ndarray], tokens: np.ndarray) -> "BlockMasks":
        """From the masks of every (t, l)."""
        layers = max(l for _, l in active) + 1
        bits = [np.packbits(active[t, l]) for t in range(tokens.size) for l in range(layers)]
        return cls(tokens, layers, active[0, 0].shape[0], np.concatenate(bits))

    def active(self, t: int, l: int) -> np.ndarray:
        size, shape = int(self._sizes[t]), self._shapes[t]
        begin = int(self._begins[t]) + l * size
        unpacked = np.unpackbits(self._bits[begin : begin + size], count=int(np.prod(shape)))
        return unpacked.reshape(shape).astype(bool)

    @property
    def counts(self) -> np.ndarray:
        """int32[T, L, H]: active blocks of every chunk."""
        chunks = range(self._tokens.size)
        return np.array([[self.active(t, l).sum((1, 2)) for l in range(self._layers)] for t in chunks], dtype=np.int32)

    def save(self, path: Path) -> None:
        shape = np.array([self._layers, self._heads])
        save_arrays(path, "masks", tokens=self._tokens, shape=shape, bits=self._bits)

    @classmethod
    def load(cls, path: Path) -> "BlockMasks":
        """Raises InputError when the file does not hold block masks."""

        def make(tokens: np.ndarray, shape: np.ndarray, bits: np.ndarray) -> "BlockMasks":
            layers, heads = shape.tolist()
            return cls(tokens, layers, heads, bits)

        return load_arrays(path, "masks", ("tokens", "shape", "bits"), make)
