"""A layout in pages: KV of so many tokens after the other, each with that of all layers and rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from kvferry.layouts.layout import Layout
from kvferry.layouts.pieces import Ranges, Reads


@dataclass(frozen=True, kw_only=True)
class PagedLayout(Layout):
    """Page by page, and in a page as in a Layout: [pages, layers, sequences, heads, ``page_blocks``]. What is decoded
    never changes a page that is full, so that it may lie anywhere, and later prompts with equal beginnings share it.
    The last page has room as the others have."""

    page_blocks: int

    @classmethod
    def of(cls, layout: Layout, page_blocks: int) -> "PagedLayout":
        """The blocks of another layout in pages."""
        return cls(page_blocks=page_blocks, **{one.name: getattr(layout, one.name) for one in fields(Layout)})

    @property
    def page_bytes(self) -> int:
        return self.layers * self.rows * self.page_blocks * self.stride_bytes

    @property
    def pages(self) -> int:
        return -(-self.blocks // self.page_blocks)

    @property
    def file_bytes(self) -> int:
        return self.pages * self.page_bytes

    def ranges(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Ranges:
        offsets = self._offsets(layer * self.rows + np.asarray(rows, np.int64), np.asarray(blocks, np.int64))
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def reads_like(self, reads: Reads, of: int, layer: int) -> Reads:
        return Reads(reads.offsets + (layer - of) * self.rows * self.page_blocks * self.stride_bytes, reads.lengths)

    def parts(self, layer: int, spans: Sequence[tuple[int, int]]) -> Ranges:
        """As many ranges as pages of rows are touched."""
        cuts = [
            (max(begin, page * self.page_blocks), min(end, (page + 1) * self.page_blocks))
            for begin, end in spans
            for page in range(begin // self.page_blocks, -(-end // self.page_blocks))
        ]
        begins, ends = np.array(cuts, np.int64).reshape(-1, 2).T
        rows = np.arange(layer * self.rows, (layer + 1) * self.rows, dtype=np.int64)
        offsets = self._offsets(rows[:, None], begins[None])
        return offsets.ravel(), np.broadcast_to((ends - begins) * self.stride_bytes, offsets.shape).ravel()

    def column(self, block: int, layers: np.ndarray) -> Ranges:
        rows = (layers[:, None] * self.rows + np.arange(self.rows)).ravel()
        offsets = self._offsets(rows, np.full(rows.shape, block))
        return offsets, np.full(offsets.shape, self.stride_bytes, np.int64)

    def _offsets(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Returns where blocks of rows of all layers begin."""
        pages, inside = np.divmod(blocks, self.page_blocks)
        offsets: np.ndarray = pages * self.page_bytes + (rows * self.page_blocks + inside) * self.stride_bytes
        return offsets
