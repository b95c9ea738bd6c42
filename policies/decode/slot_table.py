"""Tables of blocks in slots, row by row: the tables that residencies with slots have in common."""

from collections.abc import Sequence

import numpy as np

from kvferry.policies.decode.rows import BlockRows


class SlotTable:
    """Holds `rows` with `slots` each, and room for `blocks` outside the processor's memory."""

    def __init__(self, rows: int, blocks: int, slots: int) -> None:
        self.rows, self.blocks, self.slots = rows, blocks, slots
        # Flat: int32[rows * blocks], and int64[rows * slots] of flat block numbers; -1: none.
        self._slot_of = np.full(rows * blocks, -1, np.int32)
        self._block_in = np.full(rows * slots, -1, np.int64)
        self._first_block = np.arange(rows) * blocks
        self._first_slot = np.arange(rows) * slots

    def slot_of(self, row: int, block: int) -> int | None:
        slot = int(self._slot_of[row * self.blocks + block])
        return slot if slot >= 0 else None

    def renew(self, changed: BlockRows, tokens: np.ndarray | None = None, made: Sequence[tuple[int, int]] = ()) -> None:
        """Copies of blocks that have changed are given up."""
        self.forget(changed)

    def held(self, changing: BlockRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and ids of what is in a slot."""
        held = np.flatnonzero(self._slot_of >= 0)
        return held // self.blocks, held % self.blocks

    def forget(self, blocks: BlockRows) -> None:
        """Give up blocks whose move failed, or that have changed."""
        ids = (blocks.ids + blocks.spread(self._first_block)).ravel()
        ids = ids[self._slot_of[ids] >= 0]
        self._block_in[ids // self.blocks * self.slots + self._slot_of[ids]] = -1
        self._slot_of[ids] = -1

    def check(self) -> None:
        """AssertionError when the tables disagree: then a block has two slots, or a slot two blocks."""
        held = np.flatnonzero(self._slot_of >= 0)
        assert (self._block_in[held // self.blocks * self.slots + self._slot_of[held]] == held).all()
        assert np.count_nonzero(self._block_in >= 0) == len(held)
