"""The inside of a flash device: a controller, dies, channels and the bus to the host, behind a bounded queue."""

import math
from heapq import heappop, heappush

from kvferry.sim.command_queue import ARRIVES, ENDS, NO_PIECE, CommandQueue
from kvferry.sim.flash_pages import FlashPages
from kvferry.specs.storage import FlashSpec

# What happens next to some of a command's pages.
_ON_CHANNEL, _ON_BUS = 2, 3


class Flash(CommandQueue):
    """Commands on their way through a device. Simulated time moves only when `advance` is called.

    The controller, which handles one command at a time, takes `command_s` for it, and `partial_s` more when it does
    not begin and end between sectors. A read is then sensed on the dies that hold its pages, and leaves over the die's
    channel and over the bus to the host. A write takes the same path backwards, is gathered with others to whole pages,
    and has ended `buffer_s` before those are programmed. With half duplex there is one bus for both directions, and the
    controller's work on a command holds it, as it may with full duplex (`commands_hold_bus`). Controller, dies,
    channels and bus serve one at a time, first come, first served.

    Left out: garbage collection and wear, caches of what was read, suspended programs, several planes, thermal
    throttling, and where a file system puts a file's blocks.
    """

    def __init__(self, spec: FlashSpec, queue_depth: int, half_duplex: bool) -> None:
        super().__init__(spec, queue_depth)
        self._half_duplex = half_duplex
        self._commands_hold_bus = half_duplex or spec.commands_hold_bus
        self._pages, self._sector_bytes = FlashPages(spec), int(spec.sector_bytes)
        write_command_s = spec.command_s if spec.write_command_s is None else spec.write_command_s
        self._command_s = (spec.command_s, write_command_s)
        # By command: how many groups of pages are to come, and when the last so far is through.
        self._groups: dict[int, tuple[int, float]] = {}
        # When each is free again.
        self._controller_s = 0.0
        self._dies_s = [0.0] * (spec.channels * spec.dies)
        self._channels_s = [0.0] * spec.channels
        self._buses_s = [0.0, 0.0]

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

    def _work(self, until_s: float, to_first_end: bool = False) -> None:
        """Process events up to a time, or until a batch has ended. One loop without calls: most time is spent here."""
        events, commands, ended, groups = self._events, self._commands, self._ended, self._groups
        dies_s, channels_s, buses_s = self._dies_s, self._channels_s, self._buses_s
        channels, buffer_s = len(channels_s), self._spec.buffer_s
        while events and events[0][0] <= until_s and not (to_first_end and ended):
            time_s, _, what, command, piece = heappop(events)
            if what == ENDS:
                self._end(command, time_s)
                continue
            if what == ARRIVES:
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
                heappush(events, (last_s, self._order, ENDS, command, NO_PIECE))

    def _arrive(self, command: int, time_s: float) -> None:
        """At the controller, which hands the pages of a read to their dies, and those of a write to the bus."""
        spec = self._spec
        _, writes, offset, length, extra_s = self._commands[command]
        work_s = self._command_s[writes] + extra_s
        if spec.partial_s and (offset % self._sector_bytes or length % self._sector_bytes):
            work_s += spec.partial_s
        pieces = self._pages.of(offset, length, writes)
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

    def check(self) -> None:
        """Asserts that every place in the queue is free or taken by exactly one unfinished command."""
        super().check()
        assert math.isfinite(self._controller_s)
        assert set(self._groups) <= self._commands.keys()
