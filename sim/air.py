"""The air of a cell: one bottleneck that its devices share, and each device's way through it."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy

from kvferry.machine.busy import Busy
from kvferry.machine.span import Span, Tell
from kvferry.sim.bottleneck import Bottleneck
from kvferry.sim.flow import Flow, Transfer
from kvferry.sim.link import Link
from kvferry.traces.rate import RateTrace


class Part:
    """A part of a stream on its way: as a Transfer, without a ticket. What it carries joins `of` as it is served."""

    __slots__ = ("end_s", "enters_s", "flow", "link", "n_bytes", "of", "queued", "start_s", "until_share", "value")
    behind_s = 0.0
    start_s: float
    end_s: float

    def __init__(self, of: "StreamInAir", enters_s: float, value: Any) -> None:
        self.of, self.flow, self.link, self.n_bytes = of, of.flow, of.link, of.n_bytes
        self.enters_s, self.value, self.queued = enters_s, value, True

    def fire_in(self, _behind_s: float) -> None:
        """Its last byte is served."""
        self.of.times_s.append(self.end_s)
        self.of.values.append(self.value)
        self.of.took_s += self.end_s - self.start_s

    def cut_off(self, _done_bytes: float, _trace_s: float) -> None:
        """It is lost; who receives the stream learns it from what has come."""


class Air(Bottleneck):
    """One direction of a cell's air. At every instant the devices that have something to send share its rate equally
    (processor sharing), each in order.

    Parts of streams take their share as messages do, without an event each: while no message is on its way, they are
    served when anybody next looks. Left out: that devices are near or far, and what a device alone could not use.
    """

    def __init__(self, env: simpy.Environment, trace: RateTrace) -> None:
        super().__init__(env, trace)
        # Heap of (when, order, flow) of what comes to the bottleneck at a time that is known.
        self._coming: list[tuple[float, int, Flow]] = []
        # Messages that come or are served, for which the alarm is set.
        self._messages = 0
        # When the first in service is done, as it looks now; where the alarm stands.
        self._first_ends_s = self._rings_s = math.inf

    def add(self, part: Part) -> None:
        """A part of a stream comes behind what came before in its flow."""
        waiting = part.flow.waiting
        waiting.append(part)
        part.link.queued += 1
        if part.flow.serving is None and waiting[0] is part:
            # It may make a message later, never sooner: the alarm may stay.
            self._expect(part.flow, part.enters_s, self.env.now)

    def ready(self, transfer: Transfer) -> None:
        self._messages += 1
        super().ready(transfer)
        self._watch()

    def withdraw(self, transfer: Transfer) -> float | None:
        self.advance(self.env.now)
        if transfer.queued and transfer.enters_s < math.inf:
            self._messages -= 1
        done = super().withdraw(transfer)
        self._watch()
        return done

    def advance(self, now: float) -> None:
        """Serve what comes and ends until now, in the order of time."""
        coming = self._coming
        while True:
            comes_s = coming[0][0] if coming else math.inf
            if min(comes_s, self._first_ends_s) > now:
                break
            if self._first_ends_s <= comes_s:
                at_s = self._first_ends_s
                self._end_first(at_s)
            else:
                at_s, _, flow = heappop(coming)
                if flow.serving is not None:
                    continue
                super().advance(at_s)
                self._begin(flow, at_s)
            self._plan(at_s)
        super().advance(now)

    def _expect(self, flow: Flow, enters_s: float, now: float) -> None:
        heappush(self._coming, (enters_s, next(self._order), flow))

    def _begin(self, flow: Flow, now: float) -> bool:
        begun = super()._begin(flow, now)
        one: Any = flow.serving
        if begun and not isinstance(one, Part):
            one.link.began(now)
        return begun

    def _leave(self, one: Transfer | Part, n_bytes: float, now: float) -> None:
        if isinstance(one, Transfer):
            self._messages -= 1
            super()._leave(one, n_bytes, now)
        else:
            one.flow.serving, one.end_s = None, now
            self._served_bytes += n_bytes

    def _plan(self, now: float) -> None:
        """Find when the next service ends."""
        self._first_ends_s = self._next_end_s(now)
        if not self._serving and self.busy.under_way:
            self.busy.end(now)

    def _watch(self) -> None:
        """While a message is on its way, ring at whatever comes next."""
        next_s = self._first_ends_s
        if self._coming and self._coming[0][0] < next_s:
            next_s = self._coming[0][0]
        if not self._messages:
            next_s = math.inf
        elif next_s == math.inf and self._serving:
            # Nothing in service can finish: the trace ends.
            next_s = max(self.env.now, self.trace.duration_s)
        if next_s != self._rings_s:
            self._rings_s = next_s
            if next_s == math.inf:
                self._alarm.clear()
            else:
                self._alarm.set(next_s, self.env.now)

    def _ring(self, _: simpy.Event) -> None:
        self._rings_s = math.inf
        now = self.env.now
        self.advance(now)
        if self._serving and self._first_ends_s == math.inf and now >= self.trace.duration_s:
            self._give_up(now)
            self._plan(now)
        self._watch()


class InAir(Link):
    """A device's way through the air of its cell, in one direction. `busy` covers the times when a message of its own
    was served, parts of streams left out."""

    def __init__(self, air: Air, tell: Tell, resource: str) -> None:
        super().__init__(air.env, air.trace, 0.0, tell, resource, air)
        self._air, self.busy = air, Busy()
        self._serving_now = 0

    def stream(self, flow_id: Any, n_bytes: float, way_s: Callable[[], float]) -> "StreamInAir":
        """A stream of parts of this many bytes; `way_s` says of each how long it is under way to the bottleneck."""
        return StreamInAir(self._air, self, self._air.flows[flow_id], n_bytes, way_s)

    def began(self, now_s: float) -> None:
        self._serving_now += 1
        self.busy.begin(now_s)

    def left(self, transfer: Transfer, n_bytes: float, now_s: float) -> None:
        self._serving_now -= 1
        if not self._serving_now:
            self.busy.end(now_s)
        super().left(transfer, n_bytes, now_s)

    def told(self, took_s: float, end_s: float, n_bytes: float) -> None:
        """Tell of a stream as one span, as long as its parts took."""
        self._tell(Span(self.resource, "Message", end_s - took_s, end_s, n_bytes))


class StreamInAir:
    """Parts that go through the air as they are put."""

    __slots__ = ("_air", "_way_s", "flow", "link", "n_bytes", "times_s", "took_s", "values")

    def __init__(self, air: Air, link: InAir, flow: Flow, n_bytes: float, way_s: Callable[[], float]) -> None:
        self._air, self.link, self.flow, self.n_bytes, self._way_s = air, link, flow, n_bytes, way_s
        # Of those that have arrived.
        self.times_s: list[float] = []
        self.values: list[Any] = []
        self.took_s = 0.0

    def put(self, value: Any) -> None:
        """Send a part now."""
        self._air.add(Part(self, self._air.env.now + self._way_s(), value))

    def look(self) -> None:
        """Bring what has arrived up to now."""
        self._air.advance(self._air.env.now)

    def ended(self) -> None:
        """All have arrived."""
        if self.times_s:
            self.link.told(self.took_s, self.times_s[-1], self.n_bytes * len(self.times_s))
