"""Elastic loading: what is selected takes the place of what is selected no longer, and the rest stays where it is."""

from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.residency import Copies, InSlots, Resident
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup


@dataclass(frozen=True, kw_only=True)
class Elastic(InSlots):
    """As many slots as are selected at a time. A step moves the set difference of its selection and the last one, in
    place (SpeContext 5.4). Layers have them once their KV lies elsewhere (Eq. 7)."""

    @property
    def fixed(self) -> bool:
        return True

    @property
    def keeps(self) -> bool:
        return True

    def reserved_bytes(self, room: Room, selected: int) -> float:
        return 0.0

    def n_bytes(self, room: Room, selected: int, slots: int) -> int:
        return 0

    def away_tokens(self, room: Room, slots: int) -> int:
        return slots * room.block_tokens

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        return selected

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        return ElasticSlots(rows, blocks, slots)


class ElasticSlots(Copies):
    """A Resident of `slots` per row, which hold the last selection and nothing else."""

    def __init__(self, rows: int, blocks: int, slots: int) -> None:
        """`rows` that have room for so many blocks each. ValueError without slots."""
        if slots < 1:
            raise ValueError(f"a selection takes a slot at least, got {slots}")
        self.rows, self.blocks, self.slots = rows, blocks, slots
        # Flat: int32[rows * blocks], and int64[rows * slots] of flat block numbers.
        self._slot_of = np.full(rows * blocks, -1, np.int32)
        self._block_in = np.full(rows * slots, -1, np.int64)
        self._first_block = np.arange(rows) * blocks
        self._first_slot = np.arange(rows) * slots

    def slot_of(self, row: int, block: int) -> int | None:
        slot = int(self._slot_of[row * self.blocks + block])
        return slot if slot >= 0 else None

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Blocks that are no longer wanted leave; those that are missing take their slots, in order. ValueError when a
        row wants more blocks than it has slots."""
        if wanted.widest > self.slots:
            raise ValueError(f"{wanted.widest} blocks are selected, {self.slots} slots cannot hold them")
        ids = wanted.ids + wanted.spread(self._first_block)
        slots = self._slot_of[ids]
        missing = slots < 0
        is_free = np.ones(self._block_in.size, bool)
        is_free[(slots + wanted.spread(self._first_slot))[~missing]] = False
        free = np.flatnonzero(is_free)
        leaving = self._block_in[free]
        self._slot_of[leaving[leaving >= 0]] = -1
        self._block_in[free] = -1
        entering = ids[missing]
        if len(entering) < len(free):
            # More are free than are needed: the first of every row.
            rows = free // self.slots
            order = np.arange(len(free)) - np.searchsorted(rows, rows)
            free = free[order < wanted.count(missing)[rows]]
        taken = (free % self.slots).astype(np.int32)
        self._block_in[free] = entering
        self._slot_of[entering] = taken
        slots[missing] = taken
        return Lookup(wanted, missing, slots)

    def held(self, changing: BlockRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and ids of the last selection."""
        held = np.flatnonzero(self._slot_of >= 0)
        return held // self.blocks, held % self.blocks

    def forget(self, blocks: BlockRows) -> None:
        """Give up copies of blocks that have changed, or never came."""
        ids = (blocks.ids + blocks.spread(self._first_block)).ravel()
        ids = ids[self._slot_of[ids] >= 0]
        self._block_in[ids // self.blocks * self.slots + self._slot_of[ids]] = -1
        self._slot_of[ids] = -1

    def check(self) -> None:
        """AssertionError when a block has two slots, or a slot two blocks."""
        held = np.flatnonzero(self._slot_of >= 0)
        assert (self._block_in[held // self.blocks * self.slots + self._slot_of[held]] == held).all()
        assert np.count_nonzero(self._block_in >= 0) == len(held)
