"""The parts of a plan's storage file behind its KV: the index, and copies of what is kept, where these are swapped
layer by layer."""

from dataclasses import dataclass

import numpy as np

from kvferry.layouts.pieces import Ranges
from kvferry.layouts.swap_area import SwapArea


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Bytes of the file, in this order: ``kv_bytes``; of every layer and row a part of the index, ``vector_bytes`` for
    each of ``blocks``; of every layer ``kept_tokens`` of each row, of ``token_bytes`` each. ``swapped``: index and
    kept tokens are there at all. Every part begins a storage block, of ``alignment_bytes``."""

    kv_bytes: int
    layers: int
    rows: int
    blocks: int
    vector_bytes: int
    kept_tokens: int
    token_bytes: int
    alignment_bytes: int
    swapped: bool

    @property
    def _index_row_bytes(self) -> int:
        return -(-self.blocks * self.vector_bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def _index_end(self) -> int:
        return self.kv_bytes + (self.layers * self.rows * self._index_row_bytes if self.swapped else 0)

    def index_rows(self, layer: int, blocks: int) -> Ranges:
        """Returns where the vectors of a layer's first `blocks` lie: a range for each row."""
        begins = self.kv_bytes + (layer * self.rows + np.arange(self.rows)) * self._index_row_bytes
        return begins, np.full(self.rows, blocks * self.vector_bytes)

    @property
    def swap_layer_bytes(self) -> int:
        """Bytes that what is kept of a layer has in the file; 0 where it stays in memory."""
        if not self.swapped:
            return 0
        return SwapArea.n_bytes(self.rows * self.kept_tokens, self.token_bytes, self.alignment_bytes)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole file."""
        return self._index_end + self.layers * self.swap_layer_bytes

    def swap_area(self, layer: int) -> SwapArea | None:
        """Returns where what is kept of a layer lies while others compute; None: it stays in memory, or nothing is
        kept."""
        if not self.swap_layer_bytes:
            return None
        return SwapArea(
            layer=layer,
            offset=self._index_end + layer * self.swap_layer_bytes,
            slots=self.rows * self.kept_tokens,
            rows=self.rows,
            blocks=self.blocks,
            token_bytes=self.token_bytes,
            alignment_bytes=self.alignment_bytes,
        )
