"""Residencies: which KV blocks stay in the processor's memory, in which slots, and what they push out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from kvferry.policies.decode.grouping import check_slots
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.slot_table import Resident
from kvferry.policies.decode.stages import Stage, Stages
from kvferry.policies.ledger import Holding, Ledger


class Residency(ABC):
    """Base of all residencies. One that counts in slots, of a KV block each, says how many and starts a layer's
    Resident; the rest is here.

    ``swaps``: what is kept of a layer lies on storage while others compute. ``index_on_storage``: what a layer's blocks
    are scored by does, and is brought when the layer begins.
    """

    swaps: ClassVar[bool] = False
    index_on_storage: bool = False

    @property
    def fixed(self) -> bool:
        """Returns whether its memory does not depend on the budget."""
        return True

    @property
    def keeps(self) -> bool:
        """Returns whether blocks stay in memory from one step to the next, where the budget has room for a selection of
        every layer."""
        return True

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        """Returns the slots per row and layer, when `selected` blocks are wanted at a time and `left_bytes` of the
        budget are left; 0: nothing is kept in slots. ValueError for what cannot be."""
        return 0

    def kept_tokens(self, room: Room) -> int:
        """Returns the tokens per row and layer that are kept from one step to the next, where slots do not say it.
        ValueError for what cannot be."""
        return 0

    def holdings(self, room: Room, selected: int, slots: int) -> tuple[Holding, ...]:
        """Returns what each sequence holds in memory for it, in the group "kv", from beginning to end: here the slots
        of all layers; where these are too few for a selection, a buffer of one for the layer that computes and one for
        the next, which serve all layers (KVSwap A.2)."""
        blocks = {"kv: reuse buffer": room.model.layers * slots}
        if slots < selected:
            blocks["kv: read buffers"] = 2 * selected
        return tuple(Holding.of(name, n * room.read_bytes, "sequence") for name, n in blocks.items() if n)

    def reserved_bytes(self, room: Room, selected: int) -> float:
        """Returns what has to be there before an index gets its part of the budget: room for one selection, and for
        the block that a layer's newest tokens make."""
        slots = max(self.slots_within(room, selected, 0.0), selected if self.keeps else 0)
        held = self.holdings(room, selected, slots)
        return Ledger(held).n_bytes(room.tokens) + room.model.layers * room.block_bytes

    def away_tokens(self, room: Room, slots: int) -> int:
        """Returns the tokens for which each layer whose KV lies elsewhere has room in memory besides."""
        return 0

    def arranged(self, stages: Stages, layers: int) -> Stages:
        """Returns a decoding step's stages with what it needs besides."""
        return with_index(stages) if self.index_on_storage else stages

    @abstractmethod
    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        """Returns the Resident of one layer: of `rows`, each with room for `blocks` on storage, of `block_tokens` each
        where they are all alike."""


def with_index(stages: Stages) -> Stages:
    """Returns stages among which a layer begins by bringing what its blocks are scored by."""
    found, begun = list[Stage](), set[int]()
    for stage in stages:
        if stage.layer not in begun and stage.kind != "next_token":
            begun.add(stage.layer)
            found.append(Stage("bring_index", stage.layer, stage.after))
        if stage.kind == "select":
            stage = stage._replace(after=(*stage.after, ("bring_index", stage.layer)))
        found.append(stage)
    return tuple(found)


@dataclass(frozen=True)
class DoubleBuffer(Residency):
    """Keeps nothing: what a layer wants is moved at every step. ``index_on_storage``: keys that are scored are, too."""

    index_on_storage: bool = False

    @property
    def keeps(self) -> bool:
        return False

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        return NothingKept()


@dataclass(frozen=True, kw_only=True)
class Reuse(Residency):
    """Blocks stay in ``slots`` until others need them, first in, first out. "all": as many slots as the budget holds
    beside the keys, which are kept smaller where a selection would find no place; where it finds none beside the
    smallest keys, a part of a selection is kept, and the run says so. None: no more of these than pay
    (``paying_slots``)."""

    slots: int | Literal["all"] | None = None

    @property
    def fixed(self) -> bool:
        return isinstance(self.slots, int)

    @property
    def keeps(self) -> bool:
        return self.slots != 0

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        if not isinstance(self.slots, int):
            slot_bytes = room.model.layers * room.block_bytes
            if left_bytes >= selected * slot_bytes:
                return int(left_bytes / slot_bytes)
            return max(0, int((left_bytes - 2 * selected * room.block_bytes) / slot_bytes))
        check_slots(self.slots)
        return self.slots

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        return ReuseBuffer(rows, blocks, slots) if slots else NothingKept()


class NothingKept(Resident):
    """A Resident in which nothing is ever found."""

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        return Lookup(wanted, np.ones(wanted.ids.shape, bool))


class AllThere(Resident):
    """A Resident of a layer whose KV lies in the processor's memory as a whole: nothing ever has to be moved."""

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        return Lookup(wanted, np.zeros(wanted.ids.shape, bool))
