"""The queue of a storage device: batches of commands, of which only so many are in the device at once."""

from collections import deque
from collections.abc import Sequence
from heapq import heappush
from typing import Self

from kvferry.sim.flash_pages import Piece
from kvferry.specs.storage import FlashSpec

# (batch, writes, offset, length, more seconds of the controller)
_Command = tuple[int, bool, int, int, float]
# (time, order, what, command's number, which of its pages)
_Event = tuple[float, int, int, int, Piece]
NO_PIECE: Piece = 0, 0.0, 0.0, 0.0
# What happens next to a command; what happens in between is the device's business.
ARRIVES, ENDS = 0, 1


class CommandQueue:
    """Commands of batches, each batch behind all others. A command takes a place as soon as one is free, and gives it
    back when its last byte is through, as the device says by `_end`. On its way to the device the host takes `host_s`
    for it, and the time of its bytes at `host_bytes_per_s`."""

    def __init__(self, spec: FlashSpec, queue_depth: int) -> None:
        self._spec = spec
        self.now_s = 0.0
        self._free = queue_depth
        # Batches with commands that have no place yet; of the first, how many have.
        self._line: deque[tuple[int, bool, Sequence[int], Sequence[int], float]] = deque()
        self._placed = 0
        # By batch: commands and bytes that have ended, and when the first took its place.
        self._left: dict[int, int] = {}
        self._bytes_done: dict[int, int] = {}
        self._starts_s: dict[int, float] = {}
        # By number, those under way.
        self._commands: dict[int, _Command] = {}
        self._events: list[_Event] = []
        self._order = 0
        # Batches that have ended and were not returned yet: (end, batch, start).
        self._ended: list[tuple[float, int, float]] = []

    def copy(self) -> Self:
        """An independent copy of the device in its present state."""
        other = object.__new__(type(self))
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

    def _admit(self, now_s: float) -> None:
        """Give waiting commands a place in the queue while there are free places."""
        spec, line = self._spec, self._line
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
            heappush(self._events, (now_s + host_s, command, ARRIVES, command, NO_PIECE))

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
        assert {event[3] for event in self._events} <= self._commands.keys()
