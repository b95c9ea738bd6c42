"""Where KV lies in the storage file: one layout for the modelled file and the real one."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

# Offset and length of byte ranges, int64 arrays.
Ranges = tuple[np.ndarray, np.ndarray]


class PlacedBlocks(Protocol):
    """Where the blocks of a run lie; blocks may have any size, and change it."""

    def ranges(self, layer: int, rows: np.ndarray, units: np.ndarray) -> Ranges:
        """A byte range for each (row, block) of a layer, in the order given."""
        ...

    def stretches(self, layer: int, units: int) -> Ranges:
        """All of the first `units` blocks of every row of a layer."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layer by layer, sequence by sequence, unit by unit: [layers, sequences, heads, units].

    A unit is what is selected and read as a whole: a group of tokens with all KV heads (``heads`` 1), or of one head.
    ``unit_bytes`` of it are used; it begins at a multiple of ``block_bytes``, as direct I/O needs. ``units`` per
    sequence and head there is room for: the context's, and those written while decoding.
    """

    layers: int
    sequences: int
    units: int
    unit_bytes: int
    heads: int = 1
    block_bytes: int = 512

    def __post_init__(self) -> None:
        if min(self.layers, self.sequences, self.heads, self.units, self.unit_bytes) < 1:
            raise ValueError("a layout needs at least one layer, sequence, head and unit of one byte")
        if self.block_bytes < 1 or self.block_bytes & (self.block_bytes - 1):
            raise ValueError(f"block size {self.block_bytes} B is no power of two; 512 or 4096 would do")

    @property
    def stride_bytes(self) -> int:
        """From one unit to the next: its bytes, rounded up to whole blocks."""
        return -(-self.unit_bytes // self.block_bytes) * self.block_bytes

    @property
    def file_bytes(self) -> int:
        return self.layers * self.sequences * self.heads * self.units * self.stride_bytes

    @property
    def rows(self) -> int:
        """Rows of one layer: sequence by sequence, head by head."""
        return self.sequences * self.heads

    def ranges(self, layer: int, rows: np.ndarray, units: np.ndarray) -> Ranges:
        """A byte range for each (row, unit) of a layer, in the order given."""
        offsets = ((layer * self.rows + np.asarray(rows, np.int64)) * self.units + units) * self.stride_bytes
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def stretches(self, layer: int, units: int) -> Ranges:
        """The first `units` of every row of a layer, as one range each."""
        offsets = np.arange(layer * self.rows, (layer + 1) * self.rows) * (self.units * self.stride_bytes)
        return offsets, np.full(offsets.shape, units * self.stride_bytes, np.int64)

    def column(self, unit: int, layers: np.ndarray) -> Ranges:
        """One unit of every row of some layers."""
        rows = (layers[:, None] * self.rows + np.arange(self.rows)).ravel()
        offsets = (rows * self.units + unit) * self.stride_bytes
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def start(self) -> "Layout":
        """The blocks of a run: none of them ever changes its place."""
        return self
