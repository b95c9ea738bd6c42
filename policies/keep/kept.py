"""The owner of KV between turns: it knows by blocks of tokens what lies where, and never holds more than it may."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvferry.policies.keep.eviction import Block, Eviction

Place = Literal["memory", "flash", "cloud"]


@dataclass(frozen=True, kw_only=True)
class Room:
    """Blocks that may be kept in memory and on flash between turns; 0: none."""

    memory: int
    flash: int
    cloud: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be done to the blocks: ``written`` from memory to flash, ``sent`` to the cloud, or their places on
    flash ``freed``."""

    written: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()


class Kept:
    """Blocks of equal size by id. ``works_on``: where KV lies while a turn decodes; what it leaves is there, and where
    that is flash, a copy of it is in memory as it ends.

    A block may lie in several places. Of equal rank, the one with more blocks before it goes first: a beginning is of
    use without its end.
    """

    def __init__(
        self, room: Room, eviction: Eviction, works_on: Literal["memory", "flash"], in_cloud: Iterable[int] = ()
    ) -> None:
        self.room, self._eviction, self.works_on = room, eviction, works_on
        self._memory: dict[int, Block] = {}
        self._flash: dict[int, Block] = {}
        self._cloud = set(in_cloud)

    @property
    def in_memory(self) -> int:
        """The number of blocks in memory."""
        return len(self._memory)

    @property
    def memory_blocks(self) -> Collection[int]:
        """The ids of the blocks in memory."""
        return self._memory.keys()

    @property
    def on_flash(self) -> int:
        """The number of blocks on flash."""
        return len(self._flash)

    def places(self, block: int) -> tuple[Place, ...]:
        """Returns where a block lies, the nearest place first."""
        found: list[Place] = []
        if block in self._memory:
            found.append("memory")
        if block in self._flash:
            found.append("flash")
        if block in self._cloud:
            found.append("cloud")
        return tuple(found)

    def adopt(self, one: int, place: int, now_s: float) -> bool:
        """Takes a block that lies on flash from before, with `place` blocks before it, for kept there; returns False
        where it is known to lie there, or flash has no room for it."""
        if one in self._flash or len(self._flash) >= self.room.flash:
            return False
        self._flash[one] = self._memory.get(one) or Block(one, place, now_s)
        return True

    def adopt_in_cloud(self, blocks: Iterable[int]) -> None:
        """Takes blocks that lie in the cloud from before for kept there."""
        if self.room.cloud:
            self._cloud.update(blocks)

    def not_sent(self, block: int) -> None:
        """This one was to go to the cloud, and is not there."""
        self._cloud.discard(block)

    def lost(self, blocks: Iterable[int]) -> None:
        """These were to be written to flash, and are not there."""
        for one in blocks:
            block = self._flash.pop(one)
            if one not in self._memory:
                self._eviction.evicted(block)

    def make_room(self, memory: int, now_s: float, pinned: Iterable[int] = ()) -> Changes:
        """Leaves at most `memory` blocks in memory; `pinned` ones stay, as a turn is about to use them."""
        staying = set(pinned)
        out = self._out(self._memory, len(self._memory) - memory, now_s, staying)
        return self._moved_out(out, now_s, staying)

    def keep(self, blocks: Sequence[int], now_s: float, memory: int | None = None) -> Changes:
        """A turn has used and left these blocks, in this order behind each other: keeps of all what there is room for;
        in memory no more than `memory` blocks, where that is less than it may."""
        most = self.room.memory if memory is None else min(memory, self.room.memory)
        for place, one in enumerate(blocks):
            block = self._memory.get(one) or self._flash.get(one) or Block(one, place, now_s)
            self._eviction.used(block, now_s)
            block.used_s, block.uses = now_s, block.uses + 1
            self._memory[one] = block
            if self.works_on == "flash":
                self._flash[one] = block
        sent = tuple(one for one in blocks if one not in self._cloud) if self.room.cloud else ()
        self._cloud.update(sent)
        out = self._out(self._memory, len(self._memory) - most, now_s)
        changes = self._moved_out(out, now_s)
        return replace(changes, sent=sent)

    def _moved_out(self, out: list[Block], now_s: float, staying: Iterable[int] = ()) -> Changes:
        """These leave memory: to flash, as far as it has room for them."""
        for block in out:
            del self._memory[block.id]
        written: list[int] = []
        if self.room.flash and self.works_on == "memory":
            written = [block.id for block in out if block.id not in self._flash]
            self._flash |= {block.id: block for block in out}
        gone = self._out(self._flash, len(self._flash) - self.room.flash, now_s, staying)
        for block in gone:
            del self._flash[block.id]
        there = {block.id: block for block in (*out, *gone)}
        lost = [block for block in there.values() if block.id not in self._memory and block.id not in self._flash]
        for block in lost:
            self._eviction.evicted(block)
        # What found no room on flash is not written.
        left, new = {block.id for block in gone}, {*written}
        return Changes(
            tuple(one for one in written if one not in left), tuple(block.id for block in gone if block.id not in new)
        )

    def _out(self, there: dict[int, Block], number: int, now_s: float, staying: Iterable[int] = ()) -> list[Block]:
        """Returns this many blocks to go; of those on flash the ones first that are in memory, too."""
        if number <= 0:
            return []
        pinned, copies = set(staying), self._memory if there is self._flash else {}
        going = [block for block in there.values() if block.id not in pinned]
        rank = self._eviction.rank
        going.sort(key=lambda block: (block.id not in copies, rank(block, now_s), -block.place, -block.id))
        return going[:number]

    def check(self) -> None:
        """Asserts that no more is kept than may be."""
        assert len(self._memory) <= self.room.memory, (len(self._memory), self.room)
        assert len(self._flash) <= self.room.flash, (len(self._flash), self.room)
