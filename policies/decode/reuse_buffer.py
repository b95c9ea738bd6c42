"""The reuse buffer: slots that keep KV blocks moved from storage, so that the next steps need not move them again."""

import numpy as np

from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.slot_table import SlotTable


class ReuseBuffer(SlotTable):
    """One layer's slots for a lock-step batch (KVSwap 3.4.3): a slot table, filled first in, first out.

    A slot whose block the present selection needs is passed over, and its turn comes in the next round. The mapping
    table goes both ways: ``slot_of`` a block, and ``block_in`` a slot; a block without a slot lies on storage alone,
    where the layout says.

    A buffer may have fewer slots than a selection has blocks (A.1 looks reuse up by capacity, A.4 lets it grow from
    none): what finds no slot passes through the read buffers that all layers share.
    """

    def __init__(self, rows: int, blocks: int, slots: int) -> None:
        """Makes slots for each row, which has room for `blocks` on storage. ValueError without slots."""
        if slots < 1:
            raise ValueError(f"a reuse buffer has a slot at least, got {slots}")
        super().__init__(rows, blocks, slots)
        self._next = np.zeros((rows, 1), np.int64)

    def block_in(self, row: int, slot: int) -> int | None:
        block = int(self._block_in[row * self.slots + slot])
        return block - row * self.blocks if block >= 0 else None

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Find the wanted blocks, and give a slot to each that has none.

        The caller moves what is missing there before it is used. Where a row wants more blocks than it has slots, none
        that it wants is pushed out: the first that are missing get the slots that are left, and others have numbers
        from ``slots`` on, places in a read buffer that keeps nothing.
        """
        ids = wanted.ids + wanted.spread(self._first_block)
        slots = self._slot_of[ids]
        missing = slots < 0
        counts = wanted.count(missing)[:, None]
        if counts.any():
            in_use = (slots + wanted.spread(self._first_slot))[~missing]
            enters = missing
            if wanted.widest > self.slots:
                enters, counts = self._entering(wanted, missing, slots)
            victims = self._victims(in_use, counts)
            evicted = self._block_in[victims]
            self._slot_of[evicted[evicted >= 0]] = -1
            entering = ids[enters]
            taken = victims % self.slots
            self._block_in[victims] = entering
            self._slot_of[entering] = taken
            slots[enters] = taken
        return Lookup(wanted, missing, slots)

    def _entering(self, wanted: BlockRows, missing: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns which of the `missing` blocks get a slot, and how many of each row [rows, 1]; `slots` of all others
        become places in a read buffer."""
        counts = wanted.count(missing)
        # Missing blocks of a row, up to each block.
        nth = np.cumsum(missing).reshape(missing.shape) - wanted.spread(np.cumsum(counts) - counts)
        room = wanted.spread(self.slots - wanted.count(~missing))
        enters = missing & (nth <= room)
        through = missing & ~enters
        slots[through] = (self.slots + nth - room - 1)[through]
        return enters, wanted.count(enters)[:, None]

    def _victims(self, in_use: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns flat indices of the slots to fill, row by row, `counts` [rows, 1] of each; none of those `in_use`."""
        needed = np.zeros(self.rows * self.slots, bool)
        needed[in_use] = True
        most = int(counts.max())
        # No more are looked at than may be needed: the ones passed over are few, as a buffer holds several selections.
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
