"""Residencies: which KV blocks stay in the processor's memory, in which slots, and what they push out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvferry.policies.decode.grouping import check_slots
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.stages import Stages
from kvferry.policies.ledger import Holding


class Resident(Protocol):
    """One layer's blocks in memory, over a run."""

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Finds the wanted blocks, and gives a place to those that are missing: the caller moves them there. `tokens`
        are in each, like the ids; None: all have as many."""
        ...

    def renew(self, changed: BlockRows, tokens: np.ndarray | None = None, made: Sequence[tuple[int, int]] = ()) -> None:
        """Blocks have changed, and have so many tokens now. Those `made`, (row, block), are in memory as a whole."""
        ...

    def held(self, changing: BlockRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and ids of what is kept for the next step, in which the blocks that are `changing` will have changed."""
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

    def kept_tokens(self, room: Room) -> int:
        """Tokens per row and layer that are kept from one step to the next, where that is not said in slots. ValueError
        for what cannot be."""
        ...

    def holdings(self, room: Room, selected: int, slots: int) -> tuple[Holding, ...]:
        """What each sequence holds in memory for it, in the group "kv", from beginning to end."""
        ...

    def away_tokens(self, room: Room, slots: int) -> int:
        """Tokens for which each layer whose KV lies elsewhere has room in memory besides."""
        ...

    @property
    def swaps(self) -> bool:
        """What is kept of a layer lies on storage while others compute."""
        ...

    def index_layers(self, layers: int) -> int:
        """How many layers' vectors that KV blocks are scored by are in memory at a time."""
        ...

    def arranged(self, stages: Stages, layers: int) -> Stages:
        """A decoding step's stages with what it needs besides."""
        ...

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        """One layer's, for so many rows, each with room for so many blocks on storage, of so many tokens each where
        they are all alike."""
        ...


class InSlots:
    """What residencies have in common that count in slots, or keep nothing."""

    @property
    def swaps(self) -> bool:
        return False

    def kept_tokens(self, room: Room) -> int:
        return 0

    def holdings(self, room: Room, selected: int, slots: int) -> tuple[Holding, ...]:
        # Slots of all layers, or what is read at a time.
        name, blocks = ("kv: reuse buffer", room.model.layers * slots) if slots else ("kv: read buffers", 2 * selected)
        return (Holding.of(name, blocks * room.read_bytes, "sequence"),)

    def away_tokens(self, room: Room, slots: int) -> int:
        return 0

    def index_layers(self, layers: int) -> int:
        return layers

    def arranged(self, stages: Stages, layers: int) -> Stages:
        return stages


def buffer_bytes(room: Room, selected: int, slots: int) -> int:
    """Slots of all layers; without them, one buffer for the layer that computes and one for the next, which serve all
    layers (KVSwap A.2)."""
    return (room.model.layers * slots if slots else 2 * selected) * room.block_bytes


@dataclass(frozen=True)
class DoubleBuffer(InSlots):
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

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        return NothingKept()


@dataclass(frozen=True, kw_only=True)
class Reuse(InSlots):
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

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        return ReuseBuffer(rows, blocks, slots) if slots else NothingKept()


class Copies:
    """What is kept of blocks, if anything, is out of date once they change."""

    def renew(self, changed: BlockRows, tokens: np.ndarray | None = None, made: Sequence[tuple[int, int]] = ()) -> None:
        self.forget(changed)

    def forget(self, blocks: BlockRows) -> None:
        """There are no copies."""

    def held(self, changing: BlockRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        nothing = np.empty(0, np.int64)
        return nothing, nothing

    def check(self) -> None:
        """There is nothing that could be wrong."""


class NothingKept(Copies):
    """A Resident in which nothing is ever found."""

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        return Lookup(wanted, np.ones(wanted.ids.shape, bool))


class AllThere(Copies):
    """A Resident of a layer whose KV lies in the processor's memory as a whole: nothing ever has to be moved."""

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        return Lookup(wanted, np.zeros(wanted.ids.shape, bool))
