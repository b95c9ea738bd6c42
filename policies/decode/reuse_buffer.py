"""The reuse buffer: slots that keep KV blocks moved from storage, so that the next steps need not move them again."""

from collections.abc import Sequence

import numpy as np

from kvferry.policies.decode.rows import BlockRows, Lookup


class ReuseBuffer:
    """One layer's slots for a lock-step batch (KVSwap 3.4.3): a slot table, filled first in, first out.

    A slot whose block the present selection needs is passed over, and its turn comes in the next round. The mapping
    table goes both ways: ``slot_of`` a block, and ``block_in`` a slot; a block without a slot lies on storage alone,
    where the layout says.
    """

    def __init__(self, rows: int, blocks: int, slots: int) -> None:
        """Slots for each row, which has room for so many blocks on storage. ValueError without slots."""
        if slots < 1:
            raise ValueError(f"a reuse buffer has a slot at least, got {slots}")
        self.rows, self.blocks, self.slots = rows, blocks, slots
        # Flat [rows * blocks] and [rows * slots]; -1: none.
        self._slot_of = np.full(rows * blocks, -1, np.int32)
        self._block_in = np.full(rows * slots, -1, np.int64)
        self._first_block = np.arange(rows) * blocks
        self._first_slot = np.arange(rows) * slots
        self._next = np.zeros((rows, 1), np.int64)

    def slot_of(self, row: int, block: int) -> int | None:
        slot = int(self._slot_of[row * self.blocks + block])
        return slot if slot >= 0 else None

    def block_in(self, row: int, slot: int) -> int | None:
        block = int(self._block_in[row * self.slots + slot])
        return block - row * self.blocks if block >= 0 else None

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Find the wanted blocks, and give a slot to each that has none.

        The caller moves what is missing there before it is used. ValueError when a row wants more blocks than it has
        slots: they would push each other out.
        """
        if wanted.widest > self.slots:
            raise ValueError(f"{wanted.widest} blocks are selected, {self.slots} slots cannot hold them")
        ids = wanted.ids + wanted.spread(self._first_block)
        slots = self._slot_of[ids]
        missing = slots < 0
        counts = wanted.count(missing)[:, None]
        if counts.any():
            victims = self._victims((slots + wanted.spread(self._first_slot))[~missing], counts)
            evicted = self._block_in[victims]
            self._slot_of[evicted[evicted >= 0]] = -1
            entering = ids[missing]
            taken = victims % self.slots
            self._block_in[victims] = entering
            self._slot_of[entering] = taken
            slots[missing] = taken
        return Lookup(wanted, missing, slots)

    def renew(self, changed: BlockRows, tokens: np.ndarray | None = None, made: Sequence[tuple[int, int]] = ()) -> None:
        """Copies of blocks that have changed are given up."""
        self.forget(changed)

    def held(self, changing: BlockRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and ids of what is in a slot."""
        held = np.flatnonzero(self._slot_of >= 0)
        return held // self.blocks, held % self.blocks

    def forget(self, blocks: BlockRows) -> None:
        """Give up blocks whose move failed, or that have changed: they lie on storage only."""
        ids = (blocks.ids + blocks.spread(self._first_block)).ravel()
        ids = ids[self._slot_of[ids] >= 0]
        self._block_in[ids // self.blocks * self.slots + self._slot_of[ids]] = -1
        self._slot_of[ids] = -1

    def check(self) -> None:
        """AssertionError when the tables disagree: then a block has two slots, or a slot two blocks."""
        held = np.flatnonzero(self._slot_of >= 0)
        rows = held // self.blocks
        assert (self._block_in[rows * self.slots + self._slot_of[held]] == held).all()
        assert np.count_nonzero(self._block_in >= 0) == len(held)

    def _victims(self, in_use: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Flat indices of the slots to fill, row by row, `counts` [rows, 1] of each; none of those `in_use`."""
        needed = np.zeros(self.rows * self.slots, bool)
        needed[in_use] = True
        most = int(counts.max())
        # As many as may be needed are looked at: those passed over are few, as a buffer holds several selections.
        width = min(self.slots, 2 * most + 16)
        while True:
            turn = (self._next + np.arange(width)) % self.slots + self._first_slot[:, None]
            free = ~needed[turn]
            order = np.cumsum(free, axis=1)
            if width == self.slots or (order[:, -1:] >= counts).all():
                break
            width = min(self.slots, 2 * width)
        taken = free & (order <= counts)
        passed = np.where(counts > 0, width - np.argmax(taken[:, ::-1], axis=1)[:, None], 0)
        self._next = (self._next + passed) % self.slots
        victims: np.ndarray = turn[taken]
        return victims
