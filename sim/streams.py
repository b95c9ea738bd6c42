"""Streams of one simulated world: those that cross by arithmetic, and those whose parts cross one by one."""

import math
from bisect import bisect_right
from typing import Any

import simpy

from kvferry.machine.channel import Streamed
from kvferry.sim.carry import Parts
from kvferry.sim.outbox import Outbox


class SimStream:
    """A machine.MessageStream that keeps when each part was sent, and crosses when it ends: by arithmetic, not by an
    event for every part."""

    __slots__ = ("_ended", "_expected_s", "_n_bytes", "_outbox", "_said", "_sent_s")

    def __init__(self, outbox: Outbox, n_bytes: float) -> None:
        self._outbox, self._n_bytes = outbox, n_bytes
        self._ended = False
        self._sent_s: list[float] = []
        # What parts carried, by number, where they carried anything: modelled tokens say nothing.
        self._said: dict[int, Any] = {}
        # When the first of them arrive, of those that anybody has asked for.
        self._expected_s: list[float] = []

    def heard_s(self, now_s: float) -> float:
        behind_s = self._expected_s[-1] if self._expected_s else -math.inf
        if sent_s := self._sent_s[len(self._expected_s) :]:
            carry, names = self._outbox.carry, self._outbox.names
            self._expected_s += carry.expected_s(*names, sent_s, self._n_bytes, behind_s)
        there = bisect_right(self._expected_s, now_s)
        return self._expected_s[there - 1] if there else -math.inf

    @property
    def last_s(self) -> float:
        return self._sent_s[-1] if self._sent_s else -math.inf

    def put(self, value: Any = None) -> None:
        if self._ended:
            return
        self._sent_s.append(float(self._outbox.env.now))
        if value is not None:
            self._said[len(self._sent_s) - 1] = value

    def end(self) -> None:
        self._ended = True
        streamed = self._streamed()
        # Behind what was sent before, which it cannot overtake.
        self._outbox.cross(0.0, lambda crossed: self._outbox.arrive_streamed(crossed, streamed))

    def cut(self) -> None:
        if not self._ended:
            self._ended = True
            self._outbox.inbox.broken_off = self._outbox.behind(self._streamed())

    def _streamed(self) -> Streamed:
        values: list[Any] = [None] * len(self._sent_s)
        for n, value in self._said.items():
            values[n] = value
        arrivals_s = self._outbox.carry.arrivals_s(*self._outbox.names, self._sent_s, self._n_bytes)
        return Streamed(arrivals_s, values)


class CarriedStream:
    """A machine.MessageStream whose parts cross one by one."""

    __slots__ = ("_ended", "_outbox", "_parts", "last_s")

    def __init__(self, outbox: Outbox, parts: Parts) -> None:
        self._outbox, self._parts = outbox, parts
        self._ended = False
        self.last_s = -math.inf

    def heard_s(self, now_s: float) -> float:
        self._parts.look()
        return self._parts.times_s[-1] if self._parts.times_s else -math.inf

    def put(self, value: Any = None) -> None:
        if self._ended:
            return
        self.last_s = float(self._outbox.env.now)
        self._parts.put(value)

    def end(self) -> None:
        self._ended = True
        # It comes behind them.
        self._outbox.cross(0.0, self._arrived)

    def _arrived(self, crossed: simpy.Event) -> None:
        self._parts.ended()
        self._outbox.arrive(crossed, Streamed(self._parts.times_s, self._parts.values))

    def cut(self) -> None:
        if not self._ended:
            self._ended = True
            self._parts.look()
            self._outbox.inbox.broken_off = Streamed(self._parts.times_s, self._parts.values)
