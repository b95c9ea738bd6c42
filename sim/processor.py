"""A processor: ops in a queue, slowed by background load and by a shared memory's bandwidth."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import simpy

from kvferry.machine.ops import Op
from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.alarm import Alarm
from kvferry.sim.bus import MemoryBus, Share
from kvferry.sim.cost import Cost
from kvferry.sim.work_queue import TimedWork, WorkQueue
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.traces.rate import RateTrace


class Processor(WorkQueue):
    """Runs one op at a time; how queued ops wait, see WorkQueue.

    An op takes `dispatch_s` and then what it costs. Under a background load l(t) both advance at 1 - l(t); while the
    memory bus is short of bandwidth, what it costs advances at the speed of its share besides.
    `load_s` is paid before the first op, as a span "load" of its own.
    """

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        spec: ProcessorSpec,
        cost: Callable[[Op], Cost],
        load: RateTrace | None,
        bus: MemoryBus | None,
        tell: Tell,
    ) -> None:
        super().__init__(env, name, tell)
        self._spec = spec
        self._cost = cost
        self._available = _available(name, load)
        self._bus = bus
        self._loaded = spec.load_s == 0
        # Ops that ended, by end: for `speed`.
        self._ends_s, self._nominals_s, self._actuals_s = array("d"), array("d"), array("d")
        # Of the op that runs under the bus: what is left of its cost from `_left_at_s` on, and its speed.
        self._alarm = Alarm(env, self._finish)
        self._running: TimedWork | None = None
        self._share: Share | None = None
        self._speed = 1.0
        self._left_s = self._left_at_s = 0.0

    def submit(
        self,
        op: Op,
        after: Iterable[Ticket] = (),
        priority: int = 0,
        label: str = "",
        request: int | None = None,
        result: Any = None,
    ) -> Ticket:
        """Run an op; fires with `result`. Its cost is asked for now."""
        cost = self._cost(op)
        work = TimedWork(self.env, self, cost.n_bytes, label, request, result)
        return self.hand_over(work, self._spec.dispatch_s + cost.duration_s, after, priority)

    @property
    def available(self) -> RateTrace:
        """The share of the processor that background load leaves over time."""
        return self._available or RateTrace.constant(1.0)

    def speed(self, window_s: float) -> float | None:
        """Nominal over actual duration of the ops that ended in the last `window_s`; None when none did."""
        first = bisect_left(self._ends_s, self.env.now - window_s)
        actual_s = math.fsum(self._actuals_s[first:])
        return math.fsum(self._nominals_s[first:]) / actual_s if actual_s else None

    def _begin(self, work: TimedWork) -> None:
        if not self._loaded:
            self._loaded = True
            loaded_s = self.env.now + self._spec.load_s
            self._tell(Span(self.resource, "load", self.env.now, loaded_s))
            work.start_s = loaded_s
        assert work.start_s is not None
        begins_s = self._done_s(work.start_s, self._spec.dispatch_s)
        cost_s = work.nominal_s - self._spec.dispatch_s
        if self._bus is None or not work.n_bytes or not cost_s:
            work.fire_in(self._done_s(begins_s, cost_s) - self.env.now, self._end)
            return
        self._running = work
        self._left_s, self._left_at_s = cost_s, begins_s
        self._share = self._bus.join(work.n_bytes / cost_s, self._respeed)
        self._speed = self._share.speed
        self._plan()

    def _respeed(self, speed: float) -> None:
        """The share of the bus has changed; now it is `speed`."""
        now = self.env.now
        if now > self._left_at_s:
            self._left_s = max(0.0, self._left_s - self._speed * self._progress_s(self._left_at_s, now))
            self._left_at_s = now
        self._speed = speed
        self._plan()

    def _plan(self) -> None:
        self._alarm.set(self._done_s(self._left_at_s, self._left_s / self._speed), self.env.now)

    def _finish(self, _: simpy.Event) -> None:
        assert self._bus is not None and self._running is not None and self._share is not None
        work, self._running = self._running, None
        self._bus.leave(self._share)
        work.end_s = self.env.now
        work.succeed(work.result)
        self._end(work)

    def _end(self, work: TimedWork) -> None:
        assert work.start_s is not None
        now = self.env.now
        self._ends_s.append(now)
        self._nominals_s.append(work.nominal_s)
        self._actuals_s.append(now - work.start_s)
        super()._end(work)

    def _done_s(self, from_s: float, work_s: float) -> float:
        """When so many seconds of work on the unloaded processor are done."""
        return from_s + work_s if self._available is None else self._available.finish_s(from_s, work_s)

    def _progress_s(self, from_s: float, until_s: float) -> float:
        return until_s - from_s if self._available is None else self._available.amount(from_s, until_s)


def _available(name: str, load: RateTrace | None) -> RateTrace | None:
    """What a background load leaves over, as a rate; a load that ends leaves everything afterwards."""
    if load is None:
        return None
    available = load.complement()
    if load.on_end == "end":
        available = RateTrace(np.append(load.edges_s, load.duration_s + 1), np.append(available.rates, 1.0), "hold")
    if math.isinf(available.finish_s(available.duration_s, 1.0)):
        raise InputError(f"the background load of {name} leaves nothing of it for ever; it must fall below 1")
    return available
