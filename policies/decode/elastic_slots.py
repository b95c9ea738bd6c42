"""Elastic loading: what is selected takes the place of what is selected no longer, and the rest stays where it is."""

from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.residency import NothingKept, Residency
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.slot_table import Resident, SlotTable
from kvferry.policies.ledger import Holding


@dataclass(frozen=True, kw_only=True)
class Elastic(Residency):
    """Keeps as many slots as are selected at a time. A step moves the set difference of its selection and the last one,
    in place (SpeContext 5.4). Layers have them once their KV lies elsewhere (Eq. 7)."""

    def holdings(self, room: Room, selected: int, slots: int) -> tuple[Holding, ...]:
        # The placement counts what a layer's KV holds once it lies elsewhere.
        return ()

    def away_tokens(self, room: Room, slots: int) -> int:
        return slots * room.block_tokens

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        return selected

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        # A selector that takes all leaves nothing to be kept apart.
        return ElasticSlots(rows, blocks, slots) if slots else NothingKept()


class ElasticSlots(SlotTable):
    """A Resident of `slots` per row, which hold the last selection and nothing else."""

    def __init__(self, rows: int, blocks: int, slots: int) -> None:
        """Makes slots for `rows` with room for `blocks` each. ValueError without slots."""
        if slots < 1:
            raise ValueError(f"a selection takes a slot at least, got {slots}")
        super().__init__(rows, blocks, slots)

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Drops blocks that are no longer wanted; missing ones take their slots, in order. ValueError when a
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
