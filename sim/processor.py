"""A processor: ops in a queue, slowed by background load and by a shared memory's bandwidth."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import simpy

from kvferry.machine.ended import Ended
from kvferry.machine.ops import DecodeRun, Op
from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work_queue import TimedWork, WorkQueue
from kvferry.sim.alarm import Alarm
from kvferry.sim.bus import MemoryBus, Share
from kvferry.sim.contention import Contention
from kvferry.sim.cost import Cost
from kvferry.sim.heat import Heat
from kvferry.sim.pace import Pace
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.traces.rate import RateTrace


class Processor(WorkQueue):
    """Runs one op at a time; how queued ops wait, see WorkQueue.

    An op takes `dispatch_s` and then what it costs. Under a background load l(t) both advance at 1 - l(t); while the
    memory bus is short of bandwidth, what it costs advances at the speed of its share besides, at the speed that
    other paths at work leave it (`contention`), and at the clock that the device's heat leaves it (`heat`).
    `load_s` is paid before the first op, from `start` on, as a span "load" of its own.
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
        contention: Contention | None = None,
        heat: Heat | None = None,
    ) -> None:
        super().__init__(env, name, tell)
        self._spec = spec
        self.dispatch_s = spec.dispatch_s
        # What an op takes on the idle device, besides its dispatch.
        self.cost = _in_steps(cost, spec.dispatch_s)
        # The last op, and what it costs: steps that follow one another are often the same one.
        self._priced: tuple[Op | None, Cost] = None, Cost(0.0)
        self._available = _available(name, load)
        self._bus = bus
        # When it can begin its first op; None: nobody has asked it to start.
        self._from_s = None if spec.load_s else 0.0
        self._ended = Ended()
        # Of the op that runs under the bus or beside others.
        self._pace = Pace(env, self._available, self._finish)
        self._running: TimedWork | None = None
        self._share: Share | None = None
        self._bus_speed = 1.0
        self._contention = contention if contention and contention.tell(name, self._beside) else None
        self._heat = heat
        # Whether nothing ever slows an op.
        self._is_undisturbed = all(one is None for one in (self._available, bus, self._contention, heat))
        # Rings where the governor looks at the temperature while an op is under way.
        self._look = Alarm(env, lambda _: self._beside())

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
        last, cost = self._priced
        if op is not last:
            cost = self.cost(op)
            self._priced = op, cost
        work = TimedWork(self.env, self, cost.n_bytes, label, request, result)
        return self.hand_over(work, self.dispatch_s + cost.duration_s, after, priority)

    def start(self) -> None:
        """Begin to load what its first op needs, unless that was begun before."""
        if self._from_s is None:
            self._from_s = self.env.now + self._spec.load_s
            self._tell(Span(self.resource, "load", self.env.now, self._from_s))

    @property
    def starting_s(self) -> float:
        """How long an op that comes now would wait for the processor's start."""
        return self._spec.load_s if self._from_s is None else max(0.0, self._from_s - self.env.now)

    def record(self, label: str, start_s: float, end_s: float, n_bytes: float) -> None:
        super().record(label, start_s, end_s, n_bytes)
        self.busy.add(start_s, end_s)

    @property
    def available(self) -> RateTrace:
        """The share of the processor that background load leaves over time."""
        return self._available or RateTrace.constant(1.0)

    def speed(self, window_s: float) -> float | None:
        """Nominal over actual duration of the ops that ended in the last `window_s`; None when none did."""
        return self._ended.speed(self.env.now - window_s)

    def _begin(self, work: TimedWork) -> None:
        assert work.start_s is not None
        if self._from_s is None or self._from_s > work.start_s:
            work.start_s += self.starting_s
            self.start()
        # SimPy's clock begins with a whole number.
        work.start_s = float(work.start_s)
        dispatch_s = self.dispatch_s
        cost_s = work.nominal_s - dispatch_s
        if self._is_undisturbed:
            work.fire_in(work.start_s + dispatch_s + cost_s - self.env.now, self._end)
            return
        begins_s = self._pace.finish_s(work.start_s, dispatch_s)
        bus = self._bus if work.n_bytes and cost_s else None
        if bus is None and self._contention is None and self._heat is None:
            work.fire_in(self._pace.finish_s(begins_s, cost_s) - self.env.now, self._end)
            return
        self._running = work
        if bus is not None:
            self._share = bus.join(work.n_bytes / cost_s, self._respeed)
            self._bus_speed = self._share.speed
        self._pace.begin(cost_s, begins_s, self._speed())
        self._look_on_the_way()

    def _speed(self) -> float:
        speed = self._bus_speed if self._contention is None else self._bus_speed * self._contention.speed(self.resource)
        return speed if self._heat is None else speed * self._heat.clock(self.env.now)

    def _look_on_the_way(self) -> None:
        if self._heat is None:
            return
        assert self._running is not None and self._running.start_s is not None
        look_s = self._heat.next_look_s(self._running.start_s)
        if self._pace.ends_s > look_s:
            self._look.set(look_s, self.env.now)

    def _respeed(self, speed: float) -> None:
        """The share of the bus has changed; now it is `speed`."""
        self._bus_speed = speed
        self._beside()

    def _beside(self) -> None:
        """Another path has begun or ended its work, or the governor looks."""
        if self._running is not None:
            self._pace.respeed(self._speed())
            self._look_on_the_way()

    def _finish(self) -> None:
        work, share = self._running, self._share
        assert work is not None
        self._running = self._share = None
        if share is not None and self._bus is not None:
            self._bus_speed = 1.0
            self._bus.leave(share)
        work.end_s = self.env.now
        work.succeed(work.result)
        self._end(work)

    def _end(self, work: TimedWork) -> None:
        assert work.start_s is not None
        now = self.env.now
        self._ended.add(now, work.nominal_s, now - work.start_s)
        super()._end(work)


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


def _in_steps(cost: Callable[[Op], Cost], dispatch_s: float) -> Callable[[Op], Cost]:
    """Prices a run of steps by its middle one: a step's cost grows evenly with its context. All but the first are
    handed over within the op."""

    def price(op: Op) -> Cost:
        if not isinstance(op, DecodeRun):
            return cost(op)
        one = cost(op.middle)
        return Cost(op.tokens * one.duration_s + (op.tokens - 1) * dispatch_s, op.tokens * one.n_bytes)

    return price
