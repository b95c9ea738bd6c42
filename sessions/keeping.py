"""Keeps KV on a device between turns: holds its memory, writes it to flash, and reads it from there."""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from kvferry.backends.world import KvBetweenTurns
from kvferry.disk.opened_file import StorageFull
from kvferry.machine.machine import Machine
from kvferry.machine.memory import GrowingLeases
from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.policies.keep.kept import Changes, Kept
from kvferry.specs.errors import LinkDown

# What is held for KV between turns.
KEPT_KV = "kv: kept"


class Keeping:
    """Carries out what a Kept says. ``block_bytes``: of a block in memory; ``flash_bytes``: of a block on flash, where
    it lies in a place of its own."""

    def __init__(
        self, machine: Machine, between_turns: KvBetweenTurns, kept: Kept, block_bytes: float, flash_bytes: float
    ) -> None:
        self.machine, self._between_turns, self.kept = machine, between_turns, kept
        self.block_bytes, self.flash_bytes = block_bytes, flash_bytes
        self._held = GrowingLeases(machine.memory_of)
        # Places of blocks in the file, those that are free again, those that came from an earlier run, and from which
        # on places were never used but for these.
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        self._adopted: set[int] = set()
        self._unused = 0
        # Places of the turn at work, where it decodes on flash: of each of its blocks, and whether it lay there before.
        self._pages: list[tuple[int, bool]] = []
        self.written_bytes = 0.0
        # What is on its way to the cloud.
        self._sending: dict[int, simpy.Event] = {}
        # Why something could not be written, or sent; None: all could.
        self.full: StorageFull | None = None
        self.cut: LinkDown | None = None

    @property
    def memory_bytes(self) -> float:
        return self.kept.in_memory * self.block_bytes

    def adopt(self, blocks: Sequence[int], turn: int) -> None:
        """Takes what an earlier run has left on flash and in the cloud of these blocks, of a turn, for kept."""
        self.kept.adopt_in_cloud(self._between_turns.in_cloud(turn))
        found = self._between_turns.found(turn)
        if not found:
            return
        # A page of the turn at work may still have an old block in it that was never written over.
        taken = {*self._places.values(), *(place for place, _ in self._pages)}
        now_s = self.machine.env.now
        for number, block in enumerate(blocks):
            place = found.get(block)
            if place is not None and place not in taken and self.kept.adopt(block, number, now_s):
                self._places[block] = place
                taken.add(place)
                self._adopted.add(place)
                self._free = [one for one in self._free if one != place]

    def make_room(self, wanted_bytes: float, pinned: Sequence[int]) -> Generator[simpy.Event, Any, None]:
        """Gives up kept KV until this much memory is free, or nothing is left that may go."""
        lacking = wanted_bytes - self.machine.observe(1.0).free_bytes
        if lacking > 0:
            blocks = self.kept.in_memory - int(-(-lacking // self.block_bytes))
            changes = self.kept.make_room(max(0, blocks), self.machine.env.now, pinned)
            yield from self.carry_out(changes, 0)

    def lay_out(self, there: Sequence[int | None]) -> list[int]:
        """Returns the places of a turn's blocks while it decodes on flash: where `there` says that they lie, or a free
        one."""
        self._pages = [(self._new_place(), False) if one is None else (self._places[one], True) for one in there]
        return [place for place, _ in self._pages]

    def keep(self, blocks: Sequence[int], turn: int) -> Generator[simpy.Event, Any, None]:
        """Keeps what a turn has left, as far as there is room."""
        free = (self.machine.observe(1.0).free_bytes + self._held.n_bytes) // self.block_bytes
        changes = self.kept.keep(blocks, self.machine.env.now, int(free))
        came = self._come_to_stay(blocks)
        yield from self.carry_out(changes, turn)
        if self.kept.works_on == "flash":
            noted = self._between_turns.stays({one: self._places[one] for one in came if one in self._places})
            try:
                if noted:
                    yield self.machine.env.all_of(noted)
            except StorageFull as error:
                # It is there for the turns of this run.
                self.full = self.full or error

    def _come_to_stay(self, blocks: Sequence[int]) -> list[int]:
        """Gives blocks that a turn has left on flash the places where they lie, and the others' free. Returns these
        blocks."""
        came = list[int]()
        for n, (place, before) in enumerate(self._pages):
            if before:
                continue
            if n < len(blocks) and blocks[n] not in self._places:
                self._places[blocks[n]] = place
                came.append(blocks[n])
            else:
                self._free.append(place)
        self._pages = []
        return came

    def carry_out(self, changes: Changes, turn: int) -> Generator[simpy.Event, Any, None]:
        """Writes what goes to flash before its memory is given back."""
        for block in changes.freed:
            if (place := self._places.pop(block, None)) is not None:
                self._free.append(place)
        if changes.written:
            for block in changes.written:
                self._places[block] = self._new_place()
            yield from self._written(changes.written, turn)
        self._held.hold({"device": {KEPT_KV: self.memory_bytes}})
        self._sending |= dict(zip(changes.sent, self._between_turns.send(changes.sent), strict=False))
        self._between_turns.hold(self.kept.memory_blocks)

    def all_sent(self) -> Generator[simpy.Event, Any, None]:
        """Waits for what is on its way to the cloud. What cannot get there is not kept there."""
        sending, self._sending = self._sending, {}
        for block, sent in sending.items():
            why = yield sent
            if why is not None:
                self.cut = self.cut or why
                self.kept.not_sent(block)

    def _written(self, blocks: Sequence[int], turn: int) -> Generator[simpy.Event, Any, None]:
        """A device that is full keeps none of them: they are had again as they were before."""
        try:
            yield self._moved(blocks, "device", "storage", turn)
        except StorageFull as error:
            self.full = self.full or error
            self.kept.lost(blocks)
            self._free += [self._places.pop(block) for block in blocks]
        else:
            self.written_bytes += len(blocks) * self.flash_bytes

    def _new_place(self) -> int:
        if self._free:
            return self._free.pop()
        while self._unused in self._adopted:
            self._unused += 1
        self._unused += 1
        return self._unused - 1

    def read(self, blocks: Sequence[int], turn: int) -> Ticket:
        """Fires when these blocks, which lie on flash, are in memory."""
        return self._moved(blocks, "storage", "device", turn)

    def parts(self, blocks: Sequence[int], shape: tuple[int, int, int]) -> "Parts":
        """Returns where the units of these blocks lie on flash: ``shape`` [T, L, C], a T for each block."""
        places = np.array([self._places.get(block, -1) for block in blocks])
        return Parts(places, int(self.flash_bytes), int(self.block_bytes), blocks, shape)

    def _moved(self, blocks: Sequence[int], source: Any, to: Any, turn: int) -> Ticket:
        size, ordered = int(self.flash_bytes), sorted(blocks, key=self._places.__getitem__)
        offsets = np.array([self._places[block] * size for block in ordered], np.int64)
        extents = Extents(offsets, np.full(len(blocks), size, np.int64), blocks=ordered)
        return self.machine.move(extents, source, to, request=turn)


class Parts:
    """The units [T, L, C] of `blocks` on flash, each block's own one behind the other: `block_bytes` at the beginning
    of a place of `place_bytes`. ``places`` [T]: of the blocks in the file; below 0: it does not lie there."""

    def __init__(
        self,
        places: np.ndarray,
        place_bytes: int,
        block_bytes: int,
        blocks: Sequence[int],
        shape: tuple[int, int, int],
    ) -> None:
        self._blocks, self._each = blocks, shape[1] * shape[2]
        edges = block_bytes * np.arange(self._each + 1) // self._each
        self._begins = (places[:, None] * place_bytes + edges[:-1]).ravel()
        self._lengths = np.broadcast_to(np.diff(edges), (shape[0], len(edges) - 1)).ravel()
        self.longest_bytes = int(self._lengths.max())
        there = np.broadcast_to((places >= 0)[:, None, None], shape)
        self.n_bytes = np.where(there, self._lengths.reshape(shape).astype(float), np.inf)

    def extents(self, units: Sequence[int]) -> Extents:
        """Returns where these units lie, which do lie there."""
        asked = list(units)
        blocks = [self._blocks[unit // self._each] for unit in asked]
        return Extents(self._begins[asked], self._lengths[asked], blocks=blocks)
