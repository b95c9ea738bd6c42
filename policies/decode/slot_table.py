"""Blocks that a residency keeps of one layer, and the tables of those that keep them in slots."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.rows import BlockRows, Lookup


class Resident(ABC):
    """Base of one layer's blocks in memory, over a run: here nothing is kept of them."""

    @abstractmethod
    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Finds the wanted blocks, and gives the missing ones a place: the caller moves them there. `tokens`
        are in each, like the ids; None: all have as many."""

    def renew(self, changed: BlockRows, tokens: np.ndarray | None = None, made: Sequence[tuple[int, int]] = ()) -> None:
        """Notes blocks that have changed to `tokens` each. Those `made`, (row, block), are in memory as a whole. Copies
        of blocks are out of date once these change."""
        self.forget(changed)

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and ids of what is kept for the next step."""
        nothing = np.empty(0, np.int64)
        return nothing, nothing

    def ahead(
        self, limit: ReadAhead | None, token_bytes: int, changing: BlockRows | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and ids of the kept blocks that come to memory before the next look-up, as many as `limit` has
        time for (None: all), without those that are `changing`: it finds no others. The likeliest ones come first."""
        return self.held()

    def forget(self, blocks: BlockRows) -> None:  # noqa: B027 - some keep none
        """Give up copies of blocks that are out of date, or never came."""

    def check(self) -> None:  # noqa: B027
        """AssertionError when a block has two places, or a place two blocks."""


class SlotTable(Resident):
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

    def held(self, changing: BlockRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        held = np.flatnonzero(self._slot_of >= 0)
        return held // self.blocks, held % self.blocks

    def forget(self, blocks: BlockRows) -> None:
        ids = (blocks.ids + blocks.spread(self._first_block)).ravel()
        ids = ids[self._slot_of[ids] >= 0]
        self._block_in[ids // self.blocks * self.slots + self._slot_of[ids]] = -1
        self._slot_of[ids] = -1

    def check(self) -> None:
        held = np.flatnonzero(self._slot_of >= 0)
        assert (self._block_in[held // self.blocks * self.slots + self._slot_of[held]] == held).all()
        assert np.count_nonzero(self._block_in >= 0) == len(held)
