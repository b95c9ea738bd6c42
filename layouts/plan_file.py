"""The part of a plan's storage file behind its KV: the index, where it lies on storage."""

from dataclasses import dataclass, field

import numpy as np

from kvferry.layouts.pieces import Ranges


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Bytes of the file, in this order: ``kv_bytes``; of every layer and row a part of the index, ``vector_bytes`` for
    each of ``blocks``, if the file is ``with_index``. Every part begins a storage block, of ``alignment_bytes``."""

    kv_bytes: int
    layers: int
    rows: int
    blocks: int
    vector_bytes: int
    alignment_bytes: int
    with_index: bool
    # The last answer of each layer: that changes when a cluster is split.
    _known: dict[int, tuple[int, Ranges]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def _index_row_bytes(self) -> int:
        return -(-self.blocks * self.vector_bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.kv_bytes + (self.layers * self.rows * self._index_row_bytes if self.with_index else 0)

    def index_rows(self, layer: int, blocks: int) -> Ranges:
        """Returns where the vectors of a layer's first `blocks` lie: a range for each row."""
        known = self._known.get(layer)
        if known is not None and known[0] == blocks:
            return known[1]
        begins = self.kv_bytes + (layer * self.rows + np.arange(self.rows)) * self._index_row_bytes
        ranges = begins, np.full(self.rows, blocks * self.vector_bytes)
        self._known[layer] = blocks, ranges
        return ranges
