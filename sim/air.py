"""The air of a cell: one bottleneck that its devices share, and each device's way through it."""

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy

from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.link import Flow, Link, Transfer
from kvferry.traces.rate import RateTrace


class Part:
    """A part of a stream on its way: as a Transfer, without a ticket. What it carries joins `of` as it is served."""

    __slots__ = ("enters_s", "flow", "n_bytes", "of", "queued", "start_s", "until_share", "value")

    def __init__(self, flow: Flow, of: "StreamInAir", enters_s: float, value: Any) -> None:
        self.flow, self.of, self.enters_s, self.value = flow, of, enters_s, value
        self.n_bytes, self.queued, self.start_s = of.n_bytes, True, 0.0


class Air(Link):
    """One direction of a cell's air. At every instant the devices that have something to send share its rate equally
    (processor sharing), each in order.

    Parts of streams take their share as messages do, without an event each: while no message is on its way, they are
    served when anybody next looks. Left out: that devices are near or far, and what a device alone could not use.
    """

    def __init__(self, env: simpy.Environment, trace: RateTrace) -> None:
        super().__init__(env, trace, 0.0, lambda span: None)
        # Heap of (when, order, flow) of what comes to the bottleneck at a time that is known.
        self._coming: list[tuple[float, int, Flow]] = []
        # Messages that come or are served, for which the alarm is set.
        self._messages = 0
        # When the first in service is done, as it looks now; where the alarm stands.
        self._first_ends_s = self._rings_s = math.inf
        self._seats: dict[Flow, InAir] = {}

    def flow_of(self, flow_id: Any, seat: "InAir") -> Flow:
        """Returns the flow of that name, which is this device's."""
        flow = self._flows.get(flow_id)
        if flow is None:
            flow = self._flows[flow_id] = Flow()
            self._seats[flow] = seat
        return flow

    def add(self, part: Part) -> None:
        """A part of a stream comes behind what came before in its flow."""
        waiting: deque[Any] = part.flow.waiting
        waiting.append(part)
        self.queued += 1
        if part.flow.serving is None and waiting[0] is part:
            # It may make a message later, never sooner: the alarm may stay.
            self._expect(part.flow, part.enters_s, self.env.now)

    def serve(self) -> None:
        """Serve all that comes until now."""
        self._advance()

    # --- as Link has them ----------------------------------------------------------------------------------------

    def ready(self, transfer: Transfer) -> None:
        self._messages += 1
        super().ready(transfer)
        self._watch()

    def withdraw(self, transfer: Transfer) -> float | None:
        self._advance()
        if transfer.queued and transfer.enters_s < math.inf:
            self._messages -= 1
        done = super().withdraw(transfer)
        self._watch()
        return done

    def _come(self, flow: Flow) -> None:
        now = self._advance()
        if flow.serving is None and self._begin(flow, now):
            self._plan(now)

    def _expect(self, flow: Flow, enters_s: float, now: float) -> None:
        heappush(self._coming, (enters_s, next(self._order), flow))

    def _begin(self, flow: Flow, now: float) -> bool:
        begun = super()._begin(flow, now)
        if begun and not isinstance(flow.serving, Part):
            self._seats[flow].began(now)
        return begun

    def _leave(self, transfer: Transfer, n_bytes: float, now: float) -> None:
        self._messages -= 1
        self._free(transfer, n_bytes)
        self._seats[transfer.flow].ended(transfer, n_bytes, now)

    def _advance(self) -> float:
        """Serve what comes and ends until now, in the order of time."""
        now, coming = self.env.now, self._coming
        while True:
            comes_s = coming[0][0] if coming else math.inf
            if min(comes_s, self._first_ends_s) > now:
                break
            if self._first_ends_s <= comes_s:
                at_s = self._first_ends_s
                # What was planned, rather than integrated again: nothing is lost to rounding.
                self._share, self._share_at_s = self._serving[0][0], at_s
                self._end_first(at_s)
            else:
                at_s, _, flow = heappop(coming)
                if flow.serving is not None:
                    continue
                self._share_until(at_s)
                self._begin(flow, at_s)
            self._plan(at_s)
        self._share_until(now)
        return now

    def _share_until(self, time_s: float) -> None:
        if self._serving and time_s > self._share_at_s:
            self._share += self.trace.amount(self._share_at_s, time_s) / len(self._serving)
        self._share_at_s = time_s

    def _end_first(self, now: float) -> None:
        serving, share = self._serving, self._share
        while serving and serving[0][0] <= share:
            one: Any = heappop(serving)[2]
            if isinstance(one, Part):
                self._free(one, one.n_bytes)
                one.of.came(one, now)
            else:
                self._leave(one, one.n_bytes, now)
                one.fire_in(one.behind_s)
            self._begin(one.flow, now)

    def _free(self, one: "Transfer | Part", n_bytes: float) -> None:
        one.flow.serving = None
        self._served_bytes += n_bytes

    def _plan(self, now: float) -> None:
        """Find when the next service ends."""
        serving = self._serving
        if serving:
            left = (serving[0][0] - self._share) * len(serving)
            self._first_ends_s = self.trace.finish_s(now, left if left > 0 else 0.0)
            return
        self._first_ends_s = math.inf
        self._share = 0.0  # keeps the numbers small, hence precise
        if self.busy.under_way:
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
        now = self._advance()
        if self._serving and self._first_ends_s == math.inf and now >= self.trace.duration_s:
            self._give_up(now)
        self._watch()

    def _give_up(self, now: float) -> None:
        given_up: list[Any] = [entry[2] for entry in sorted(self._serving)]
        self._serving.clear()
        for one in given_up:
            done = self._done(one)
            if isinstance(one, Part):
                self._free(one, done)
            else:
                self._leave(one, done, now)
                one.fail(self._down(one, done))
            self._begin(one.flow, now)
        self._plan(now)


class InAir(Link):
    """A device's way through the air of its cell, in one direction. `busy` covers the times when a message of its own
    was served, parts of streams left out."""

    def __init__(self, air: Air, tell: Tell, resource: str) -> None:
        super().__init__(air.env, air.trace, 0.0, tell, resource)
        self._air = air
        self._serving_now = 0

    def transfer(self, flow_id: Any, n_bytes: float, *args: Any, **asked: Any) -> Ticket:
        self._air.flow_of(flow_id, self)
        return self._air.transfer(flow_id, n_bytes, *args, **asked)

    def stream(self, flow_id: Any, n_bytes: float, way_s: Callable[[], float]) -> "StreamInAir":
        """A stream of parts of this many bytes; `way_s` says of each how long it is under way to the bottleneck."""
        return StreamInAir(self._air, self._air.flow_of(flow_id, self), n_bytes, way_s, self.told)

    def began(self, now: float) -> None:
        """A message of its own is served from now on."""
        self._serving_now += 1
        self.busy.begin(now)

    def ended(self, transfer: Transfer, n_bytes: float, now: float) -> None:
        """A message of its own is no longer served."""
        assert transfer.start_s is not None
        self._serving_now -= 1
        if not self._serving_now:
            self.busy.end(now)
        self._served_bytes += n_bytes
        self._tell(Span(self.resource, transfer.label, transfer.start_s, now, n_bytes, transfer.request))

    def told(self, took_s: float, end_s: float, n_bytes: float) -> None:
        """Tell of a stream as one span, as long as its parts took."""
        self._tell(Span(self.resource, "Message", end_s - took_s, end_s, n_bytes))


class StreamInAir:
    """Parts that go through the air as they are put."""

    __slots__ = ("_air", "_flow", "_told", "_took_s", "_way_s", "n_bytes", "times_s", "values")

    def __init__(
        self,
        air: Air,
        flow: Flow,
        n_bytes: float,
        way_s: Callable[[], float],
        told: Callable[[float, float, float], None],
    ) -> None:
        self._air, self._flow, self.n_bytes, self._way_s, self._told = air, flow, n_bytes, way_s, told
        # Of those that have arrived.
        self.times_s: list[float] = []
        self.values: list[Any] = []
        self._took_s = 0.0

    def put(self, value: Any) -> None:
        """Send a part now."""
        self._air.add(Part(self._flow, self, self._air.env.now + self._way_s(), value))

    def came(self, part: Part, now: float) -> None:
        """The last byte of a part is served."""
        self.times_s.append(now)
        self.values.append(part.value)
        self._took_s += now - part.start_s

    def look(self) -> None:
        """Bring what has arrived up to now."""
        self._air.serve()

    def ended(self) -> None:
        """All have arrived."""
        if self.times_s:
            self._told(self._took_s, self.times_s[-1], self.n_bytes * len(self.times_s))
