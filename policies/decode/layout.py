"""Where KV lies in the storage file: one layout for the modelled file and the real one."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

# Offset and length of byte ranges, int64 arrays.
Ranges = tuple[np.ndarray, np.ndarray]
# One number, or an array of them, beside others.
Places = np.ndarray | int


class PlacedBlocks(Protocol):
    """Where the blocks of a run lie; blocks may have any size, and change it."""

    def ranges(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Ranges:
        """A byte range for each (row, block) of a layer, in the order given."""
        ...

    def stretches(self, layer: int, blocks: int) -> Ranges:
        """All of the first `blocks` blocks of every row of a layer."""
        ...


class PlacedClusters(PlacedBlocks, Protocol):
    """Where clusters lie, which differ in size, grow and are cut. Blocks of a row are numbered as they come. Arrays of
    layers, rows and blocks go together, place by place. What changes blocks returns the byte ranges that have to be
    written, each of the end of its block."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, rows of each, and blocks that a row has room for."""
        ...

    @property
    def room(self) -> int:
        """Blocks that a row has room for."""
        ...

    def filled(self, layer: int, tokens: np.ndarray) -> None:
        """The context's blocks of a layer have so many tokens, int[rows, blocks]: said before anything is written."""
        ...

    def most(self, layer: int) -> int:
        """Blocks of the row that has the most."""
        ...

    def fewest(self, layer: int) -> int:
        """Blocks of the row that has the fewest."""
        ...

    def counts(self, layers: Places, rows: Places) -> np.ndarray:
        """How many blocks rows have."""
        ...

    def tokens_of(self, layers: Places, rows: Places, blocks: Places) -> np.ndarray:
        """Tokens in each block; 0 where there is none."""
        ...

    def fits(self, layers: Places, rows: Places, blocks: Places, tokens: int = 1) -> np.ndarray:
        """bool: so many tokens more can be written without the block's others; if not, all of it has to be there."""
        ...

    def grow(self, layers: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> Ranges:
        """A token more in each of these blocks, of different rows: a range for each, in their order."""
        ...

    def append(self, layer: int, row: int, block: int, tokens: int = 1) -> Ranges:
        """So many tokens more in a block: one range."""
        ...

    def split(self, layer: int, row: int, block: int, stay: int, leave: int) -> tuple[int, Ranges]:
        """So many of a block's tokens, and of those that came to it, stay, and others leave for a new block: its number
        and two ranges, the old one's first. InputError without room."""
        ...

    def open(self, layer: int, row: int, tokens: int) -> tuple[int, Ranges]:
        """A new block of so many tokens: its number and one range. InputError without room."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layer by layer, sequence by sequence, block by block: [layers, sequences, heads, blocks].

    A block is what is selected and read as a whole: a group of tokens with all KV heads (``heads`` 1), or of one head.
    ``block_bytes`` of it are used; it begins at a multiple of ``alignment_bytes``, as direct I/O needs. ``blocks`` per
    sequence and head there is room for: the context's, and those written while decoding.
    """

    layers: int
    sequences: int
    blocks: int
    block_bytes: int
    heads: int = 1
    alignment_bytes: int = 512

    def __post_init__(self) -> None:
        if min(self.layers, self.sequences, self.heads, self.blocks, self.block_bytes) < 1:
            raise ValueError("a layout needs at least one layer, sequence, head and block of one byte")
        if self.alignment_bytes < 1 or self.alignment_bytes & (self.alignment_bytes - 1):
            raise ValueError(f"block size {self.alignment_bytes} B is no power of two; 512 or 4096 would do")

    @property
    def stride_bytes(self) -> int:
        """From one block to the next: its bytes, rounded up to whole blocks."""
        return -(-self.block_bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def file_bytes(self) -> int:
        return self.layers * self.sequences * self.heads * self.blocks * self.stride_bytes

    @property
    def rows(self) -> int:
        """Rows of one layer: sequence by sequence, head by head."""
        return self.sequences * self.heads

    def ranges(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Ranges:
        """A byte range for each (row, block) of a layer, in the order given."""
        offsets = ((layer * self.rows + np.asarray(rows, np.int64)) * self.blocks + blocks) * self.stride_bytes
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def stretches(self, layer: int, blocks: int) -> Ranges:
        """The first `blocks` of every row of a layer, as one range each."""
        offsets = np.arange(layer * self.rows, (layer + 1) * self.rows) * (self.blocks * self.stride_bytes)
        return offsets, np.full(offsets.shape, blocks * self.stride_bytes, np.int64)

    def column(self, block: int, layers: np.ndarray) -> Ranges:
        """One block of every row of some layers."""
        rows = (layers[:, None] * self.rows + np.arange(self.rows)).ravel()
        offsets = (rows * self.blocks + block) * self.stride_bytes
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def start(self) -> "Layout":
        """The blocks of a run: none of them ever changes its place."""
        return self
