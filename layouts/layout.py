"""A layout of KV in the storage file: one for the modelled file and the real one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from kvferry.layouts.pieces import Pieces, Reads
from kvferry.layouts.pieces import Ranges as Ranges

# One number, or an array of them, beside others.
Places = np.ndarray | int
# Layers that are alike, and rows and blocks that are wanted of each of them.
Wanted = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass
class LayoutCounts:
    """Counts what a layout has come to. ``new_bytes``: of entries that came after prefill. ``moved_bytes``: of entries
    that had their place, and were written again at another. ``written_bytes``: in whole pages, both together."""

    new_bytes: int = 0
    moved_bytes: int = 0
    written_bytes: int = 0


class PlacedBlocks(Protocol):
    """Places the blocks of a run, which may have any size, and change it."""

    @property
    def counted(self) -> LayoutCounts | None:
        """Returns what has come of updates since counts began again; None: blocks never change."""
        ...

    @property
    def space_overhead(self) -> float | None:
        """Returns what the blocks take of the file over their entries' bytes, less one; None: blocks never change."""
        ...

    def count_anew(self) -> None: ...

    def reads(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Reads:
        """Returns how (row, block)s of a layer are read."""
        ...

    def reads_together(self, wanted: Sequence[Wanted]) -> list[list[Reads]]:
        """Returns how the same (row, block)s of several layers are read, whose blocks have the same tokens; of several
        lists of layers, each with its own (row, block)s."""
        ...

    def stretches(self, layer: int, blocks: int) -> Ranges:
        """All of the first `blocks` blocks of every row of a layer."""
        ...

    def tokens_of(self, layers: Any, rows: Any, blocks: Any) -> np.ndarray:
        """Tokens in each of these blocks."""
        ...

    def whole(self, layer: int) -> Pieces | None:
        """All that a layer has in the file, by its places there; None: its blocks never change."""
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
    # Blocks stay as they are: nothing moves or waits in memory, and there is nothing to count.
    moves: ClassVar[bool] = False
    buffer_bytes: ClassVar[int] = 0
    counted: ClassVar[None] = None
    space_overhead: ClassVar[None] = None

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

    def reads(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Reads:
        """One range for each, in the order given."""
        return Reads(*self.ranges(layer, rows, blocks))

    def reads_like(self, reads: Reads, of: int, layer: int) -> Reads:
        """Returns for another layer what `reads` are for layer `of`."""
        return Reads(reads.offsets + (layer - of) * self.rows * self.blocks * self.stride_bytes, reads.lengths)

    def reads_alike(self, layers: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> list[Reads]:
        first = int(layers[0])
        found = self.reads(first, rows, blocks)
        return [self.reads_like(found, first, layer) for layer in layers.tolist()]

    def reads_together(self, wanted: Sequence[Wanted]) -> list[list[Reads]]:
        return [self.reads_alike(*one) for one in wanted]

    def stretches(self, layer: int, blocks: int) -> Ranges:
        """The first `blocks` of every row of a layer, as one range each."""
        return self.parts(layer, [(0, blocks)])

    def parts(self, layer: int, spans: Sequence[tuple[int, int]]) -> Ranges:
        """Returns blocks from the first to before the last of each span, of every row of a layer: row by row, as one
        range each."""
        begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
        rows = np.arange(layer * self.rows, (layer + 1) * self.rows, dtype=np.int64)[:, None]
        offsets = (rows * self.blocks + begins) * self.stride_bytes
        return offsets.ravel(), np.broadcast_to((ends - begins) * self.stride_bytes, offsets.shape).ravel()

    def tokens_of(self, layers: Any, rows: Any, blocks: Any) -> np.ndarray:
        raise NotImplementedError("a block is as many tokens as the plan says, a layout knows bytes alone")

    def whole(self, layer: int) -> None:
        """Blocks never change."""

    def count_anew(self) -> None:
        """There is nothing to count."""

    def column(self, block: int, layers: np.ndarray) -> Ranges:
        """One block of every row of some layers."""
        rows = (layers[:, None] * self.rows + np.arange(self.rows)).ravel()
        offsets = (rows * self.blocks + block) * self.stride_bytes
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def start(self) -> "Layout":
        """The blocks of a run: none of them ever changes its place."""
        return self
