"""Residencies: which KV blocks stay in the processor's memory, in which slots, and what they push out."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvferry.policies.decode.grouping import check_slots
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup


class Resident(Protocol):
    """One layer's blocks in memory, over a run."""

    def look_up(self, wanted: BlockRows) -> Lookup:
        """Find the wanted blocks, and give a place to those that are missing: the caller moves them there."""
        ...

    def forget(self, blocks: BlockRows) -> None:
        """Give up copies of blocks that are out of date, or never came."""
        ...

    def check(self) -> None:
        """AssertionError when a block has two places, or a place two blocks."""
        ...


class Residency(Protocol):
    @property
    def fixed(self) -> bool:
        """Takes the memory that it takes, whatever the budget."""
        ...

    @property
    def keeps(self) -> bool:
        """Blocks stay in memory from one step to the next, where the budget has room for a selection of every layer."""
        ...

    def reserved_bytes(self, room: Room, selected: int) -> float:
        """What it needs before an index gets its part of the budget."""
        ...

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        """Slots per row and layer, when `selected` blocks are wanted at a time and so much of the budget is left; 0:
        nothing is kept from one step to the next. ValueError for what cannot be."""
        ...

    def start(self, rows: int, blocks: int, slots: int) -> Resident:
        """One layer's, for so many rows, each with room for so many blocks on storage."""
        ...


def buffer_bytes(room: Room, selected: int, slots: int) -> int:
    """Slots of all layers; without them, one buffer for the layer that computes and one for the next, which serve all
    layers (KVSwap A.2)."""
    return (room.model.layers * slots if slots else 2 * selected) * room.block_bytes


@dataclass(frozen=True)
class DoubleBuffer:
    """Nothing is kept: what a layer wants is moved anew at every step."""

    @property
    def fixed(self) -> bool:
        return True

    @property
    def keeps(self) -> bool:
        return False

    def reserved_bytes(self, room: Room, selected: int) -> float:
        # The newest tokens' block of each layer, too.
        return buffer_bytes(room, selected, 0) + room.model.layers * room.block_bytes

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        return 0

    def start(self, rows: int, blocks: int, slots: int) -> Resident:
        return NothingKept()


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Blocks stay in ``slots`` until others need them, first in, first out. None: as many slots as the budget holds
    beside the keys, which are kept smaller where a selection would find no place; where it finds none beside the
    smallest keys, nothing is kept, and the run says so."""

    slots: int | None = None

    @property
    def fixed(self) -> bool:
        return self.slots is not None

    @property
    def keeps(self) -> bool:
        return self.slots != 0

    def reserved_bytes(self, room: Room, selected: int) -> float:
        # The newest tokens' block takes a slot's bytes of every layer.
        return buffer_bytes(room, selected, selected if self.slots is None else self.slots) + (
            room.model.layers * room.block_bytes
        )

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        if self.slots is None:
            fitting = int(left_bytes / (room.model.layers * room.block_bytes)) - 1
            return fitting if fitting >= selected else 0
        check_slots(self.slots, selected)
        return self.slots

    def start(self, rows: int, blocks: int, slots: int) -> Resident:
        return ReuseBuffer(rows, blocks, slots) if slots else NothingKept()


class NothingKept:
    """A Resident in which nothing is ever found."""

    def look_up(self, wanted: BlockRows) -> Lookup:
        return Lookup(wanted, np.ones(wanted.ids.shape, bool))

    def forget(self, blocks: BlockRows) -> None:
        """There are no copies."""

    def check(self) -> None:
        """There is nothing that could be wrong."""


class AllThere:
    """A Resident of a layer whose KV lies in the processor's memory as a whole: nothing ever has to be moved."""

    def look_up(self, wanted: BlockRows) -> Lookup:
        return Lookup(wanted, np.zeros(wanted.ids.shape, bool))

    def forget(self, blocks: BlockRows) -> None:
        """There are no copies."""

    def check(self) -> None:
        """There is nothing that could be wrong."""
