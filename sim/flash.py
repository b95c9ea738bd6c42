"""The inside of a flash device: a bounded queue, a controller, dies, channels and the bus to the host."""

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from kvferry.specs.storage import FlashSpec

# A command with more pages per die than this is simulated in groups of one die's pages: its first byte moves later by
# less than one part in this number, and a gigabyte does not become a million events.
_GROUPS_PER_DIE = 16
# What happens next to a command, or to some of its pages.
_ARRIVES, _ON_CHANNEL, _ON_BUS, _ENDS = range(4)

# (batch, writes, offset, length, more seconds of the controller)
_Command = tuple[int, bool, int, int, float]
# Some of a command's pages: (die, seconds of the die, of its channel, of the bus)
_Piece = tuple[int, float, float, float]
# (time, order, what, command's number, which of its pages)
_Event = tuple[float, int, int, int, _Piece]
_NO_PIECE: _Piece = 0, 0.0, 0.0, 0.0


class Flash:
    """Commands on their way through a device. Simulated time moves only when `advance` is called.

    A command takes a place in the queue as soon as one is free, and gives it back when its last byte is through. The
    host takes `host_s` for it, and the time of its bytes at `host_bytes_per_s`; the controller, which handles one
    command at a time, `command_s`, and `partial_s` more when it does not begin and end between sectors. A read is
    then sensed on the dies that hold its pages (page p on die p mod dies), whole pages only; it leaves over the
    die's channel in whole sectors, and over the bus to the host without what was not asked for. A write takes the
    same path backwards, is gathered with others to whole pages, and has ended `buffer_s` before those are
    programmed. With half duplex there is one bus for both directions, and the controller's work on a command holds
    it, as it may with full duplex (`commands_hold_bus`). Controller, dies, channels and bus serve one at a time,
    first come, first served.

    Left out: garbage collection and wear, caches of what was read, suspended programs, several planes, thermal
    throttling, and where a file system puts a file's blocks.
    """

    def __init__(self, spec: FlashSpec, queue_depth: int, half_duplex: bool) -> None:
        self.spec = spec
        self.now_s = 0.0
        self._half_duplex = half_duplex
        self._commands_hold_bus = half_duplex or spec.commands_hold_bus
        self._page_bytes, self._sector_bytes = int(spec.page_bytes), int(spec.sector_bytes)
        self._channel_s_per_byte = 1 / spec.channel_bytes_per_s
        self._bus_s_per_byte = 1 / spec.bus_bytes_per_s
        write_command_s = spec.command_s if spec.write_command_s is None else spec.write_command_s
        self._command_s = (spec.command_s, write_command_s)
        self._free = queue_depth
        # Batches with commands that have no place yet; of the first, how many have.
        self._line: deque[tuple[int, bool, Sequence[int], Sequence[int], float]] = deque()
        self._placed = 0
        # By batch: commands and bytes that have ended, and when the first took its place.
        self._left: dict[int, int] = {}
        self._bytes_done: dict[int, int] = {}
        self._starts_s: dict[int, float] = {}
        # By command under way: what it is, how many groups of pages are to come, and when the last so far is through.
        self._commands: dict[int, _Command] = {}
        self._groups: dict[int, tuple[int, float]] = {}
        self._events: list[_Event] = []
        self._order = 0
        # Batches that have ended and were not returned yet: (end, batch, start).
        self._ended: list[tuple[float, int, float]] = []
        # When each is free again.
        self._controller_s = 0.0
        self._dies_s = [0.0] * (spec.channels * spec.dies)
        self._channels_s = [0.0] * spec.channels
        self._buses_s = [0.0, 0.0]

    def copy(self) -> "Flash":
        """An independent copy of the device in its present state."""
        other = object.__new__(Flash)
        for name, value in self.__dict__.items():
            other.__dict__[name] = value.copy() if isinstance(value, list | dict | deque) else value
        return other

    def feed(self, batch: int, writes: bool, offsets: Sequence[int], lengths: Sequence[int], extra_s: float) -> None:
        """Queue a batch behind all others; each of its commands takes `extra_s` more of the controller's time."""
        if not offsets:
            self._ended.append((self.now_s, batch, self.now_s))
            return
        self._left[batch] = len(offsets)
        self._bytes_done[batch] = 0
        self._line.append((batch, writes, offsets, lengths, extra_s))
        self._admit(self.now_s)

    def withdraw(self, batch: int) -> int:
        """Drop the commands of a batch that have no place in the queue yet; returns the bytes of the ones that have
        ended.

        Commands under way still occupy the device, but their end is not reported.
        """
        if self._line and self._line[0][0] == batch:
            self._placed = 0
        self._line = deque(entry for entry in self._line if entry[0] != batch)
        self._left.pop(batch, None)
        self._starts_s.pop(batch, None)
        return self._bytes_done.pop(batch)

    def advance(self, until_s: float) -> list[tuple[float, int, float]]:
        """Simulate up to a time; returns (end, batch, start) of every batch that has ended."""
        self._work(until_s)
        self.now_s = until_s
        ended, self._ended = self._ended, []
        return ended

    def first_end_s(self) -> float | None:
        """Simulate until a batch ends; returns when, or None if there is no batch."""
        self._work(math.inf, to_first_end=True)
        return self._ended[0][0] if self._ended else None

    def _admit(self, now_s: float) -> None:
        """Give waiting commands a place in the queue while there are free places."""
        spec, line = self.spec, self._line
        while self._free and line:
            batch, writes, offsets, lengths, extra_s = line[0]
            at = self._placed
            if at == 0:
                self._starts_s[batch] = now_s
            self._placed += 1
            if self._placed == len(offsets):
                line.popleft()
                self._placed = 0
            self._free -= 1
            self._order = command = self._order + 1
            length = lengths[at]
            self._commands[command] = (batch, writes, offsets[at], length, extra_s)
            host_s = spec.host_s + (length / spec.host_bytes_per_s if spec.host_bytes_per_s else 0.0)
            heappush(self._events, (now_s + host_s, command, _ARRIVES, command, _NO_PIECE))

    def _work(self, until_s: float, to_first_end: bool = False) -> None:
        """Process events up to a time, or until a batch has ended. One loop without calls: most time is spent here."""
        events, commands, ended, groups = self._events, self._commands, self._ended, self._groups
        dies_s, channels_s, buses_s = self._dies_s, self._channels_s, self._buses_s
        channels, buffer_s = len(channels_s), self.spec.buffer_s
        while events and events[0][0] <= until_s and not (to_first_end and ended):
            time_s, _, what, command, piece = heappop(events)
            if what == _ENDS:
                self._end(command, time_s)
                continue
            if what == _ARRIVES:
                self._arrive(command, time_s)
                continue
            die, die_s, channel_s, bus_s = piece
            writes = commands[command][1]
            if what == _ON_CHANNEL:
                free_s = channels_s[die % channels]
                channels_s[die % channels] = end_s = (free_s if free_s > time_s else time_s) + channel_s
                if writes:
                    free_s = dies_s[die]
                    dies_s[die] = end_s = (free_s if free_s > end_s else end_s) + die_s
                    end_s = end_s - buffer_s if end_s - buffer_s > time_s else time_s
                else:
                    self._order += 1
                    heappush(events, (end_s, self._order, _ON_BUS, command, piece))
                    continue
            else:
                bus = writes and not self._half_duplex
                free_s = buses_s[bus]
                buses_s[bus] = end_s = (free_s if free_s > time_s else time_s) + bus_s
                if writes:
                    self._order += 1
                    heappush(events, (end_s, self._order, _ON_CHANNEL, command, piece))
                    continue
            # This piece is through, or sure to be by then.
            left, last_s = groups[command]
            last_s = last_s if last_s > end_s else end_s
            if left > 1:
                groups[command] = left - 1, last_s
            else:
                del groups[command]
                self._order += 1
                heappush(events, (last_s, self._order, _ENDS, command, _NO_PIECE))

    def _arrive(self, command: int, time_s: float) -> None:
        """At the controller, which hands the pages of a read to their dies, and those of a write to the bus."""
        spec = self.spec
        _, writes, offset, length, extra_s = self._commands[command]
        work_s = self._command_s[writes] + extra_s
        if spec.partial_s and (offset % self._sector_bytes or length % self._sector_bytes):
            work_s += spec.partial_s
        pieces = self._pieces(offset, length, writes)
        self._groups[command] = len(pieces), 0.0
        if self._commands_hold_bus:
            die, die_s, channel_s, bus_s = pieces[0]
            pieces[0] = die, die_s, channel_s, bus_s + work_s
        else:
            free_s = self._controller_s
            self._controller_s = time_s = (free_s if free_s > time_s else time_s) + work_s
        events, dies_s, order = self._events, self._dies_s, self._order
        for piece in pieces:
            order += 1
            if writes:
                heappush(events, (time_s, order, _ON_BUS, command, piece))
            else:
                die = piece[0]
                free_s = dies_s[die]
                dies_s[die] = sensed_s = (free_s if free_s > time_s else time_s) + piece[1]
                heappush(events, (sensed_s, order, _ON_CHANNEL, command, piece))
        self._order = order

    def _pieces(self, offset: int, length: int, writes: bool) -> list[_Piece]:
        """A command's pages, or groups of a die's pages when they are many."""
        page, sector, dies = self._page_bytes, self._sector_bytes, len(self._dies_s)
        on_channel, on_bus = self._channel_s_per_byte, self._bus_s_per_byte
        end = offset + length
        first, last = offset // page, (end - 1) // page
        n_pages = last - first + 1
        if n_pages <= _GROUPS_PER_DIE * dies:
            pieces: list[_Piece] = []
            for number in range(first, last + 1):
                begin, stop = (
                    offset if number == first else number * page,
                    end if number == last else number * page + page,
                )
                sectors = (-(-stop // sector) - begin // sector) * sector
                die_s = self.spec.page_program_s * sectors / page if writes else self.spec.page_read_s
                pieces.append((number % dies, die_s, sectors * on_channel, (stop - begin) * on_bus))
            return pieces
        channel_s = (-(-end // sector) - offset // sector) * sector * on_channel
        page_s = self.spec.page_program_s if writes else self.spec.page_read_s
        size = n_pages // (_GROUPS_PER_DIE * dies)
        pieces = []
        for begin in range(0, -(-n_pages // dies), size):
            for at in range(dies):
                # This die's pages are at, at + dies, ... of the command.
                pages = min(begin + size, -(-(n_pages - at) // dies)) - begin
                if pages > 0:
                    share = pages / n_pages
                    pieces.append(((first + at) % dies, pages * page_s, channel_s * share, length * on_bus * share))
        return pieces

    def _end(self, command: int, time_s: float) -> None:
        batch, _, _, length, _ = self._commands.pop(command)
        if batch in self._left:
            self._bytes_done[batch] += length
            self._left[batch] -= 1
            if not self._left[batch]:
                del self._left[batch], self._bytes_done[batch]
                self._ended.append((time_s, batch, self._starts_s.pop(batch)))
        self._free += 1
        self._admit(time_s)

    def check(self) -> None:
        """Asserts that every place in the queue is free or taken by exactly one unfinished command."""
        assert self._free >= 0
        assert math.isfinite(self._controller_s)
        assert {event[3] for event in self._events} <= self._commands.keys()
        assert set(self._groups) <= self._commands.keys()
