"""Processors on one memory against a plain, slow model, and laws that hold for any load and demand."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.ops import FeedForward, Op
from kvferry.machine.span import Span
from kvferry.machine.ticket import Ticket
from kvferry.sim.bus import MemoryBus
from kvferry.sim.cost import Cost
from kvferry.sim.energy import EnergyMeter
from kvferry.sim.processor import Processor
from kvferry.specs.device import ProcessorSpec
from kvferry.traces.rate import RateTrace

CAPACITY = 100.0


@dataclass(frozen=True)
class Asked:
    """An op: when and where it is handed over, what it costs, and when it is cancelled, if ever."""

    at_s: float
    processor: int
    cost: Cost
    priority: int = 0
    cancelled_s: float | None = None


times_s = st.one_of(st.integers(0, 6).map(float), st.floats(0, 6))
costs = st.builds(
    lambda duration_s, demand: Cost(duration_s, duration_s * demand),
    st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.01, 3)),
    st.one_of(st.sampled_from([0.0, 20.0, 50.0, 80.0, 100.0]), st.floats(1, 150)),
)
asked = st.builds(Asked, times_s, st.integers(0, 2), costs, st.integers(0, 1), st.one_of(st.none(), times_s))
asks = st.lists(asked, min_size=1, max_size=14).map(lambda found: sorted(found, key=lambda ask: ask.at_s))
loads = st.one_of(
    st.none(),
    st.lists(st.floats(0, 0.9), min_size=1, max_size=5).map(lambda rates: RateTrace.from_samples(rates, 0.5, "loop")),
)


def run(asks: list[Asked], load: RateTrace | None) -> tuple[list[Ticket], list[Span], list[Processor]]:
    env = simpy.Environment()
    bus = MemoryBus(CAPACITY)
    spans: list[Span] = []
    spec = ProcessorSpec(kind="gpu", flop_per_s=1e12, bytes_per_s=1e9)

    def cost(op: Op) -> Cost:
        assert isinstance(op, FeedForward)
        return asks[op.batch].cost

    processors = [Processor(env, str(i), spec, cost, load, bus, spans.append) for i in range(3)]
    tickets: list[Ticket] = []

    def hand_over():  # type: ignore[no-untyped-def]
        for number, ask in enumerate(asks):
            yield env.timeout(max(0.0, ask.at_s - env.now))
            ticket = processors[ask.processor].submit(FeedForward(number), priority=ask.priority)
            tickets.append(ticket)
            if ask.cancelled_s is not None:
                wait = env.timeout(max(0.0, ask.cancelled_s - env.now))
                wait.callbacks.append(lambda _, ticket=ticket: ticket.cancel())

    env.process(hand_over())
    while env.peek() < math.inf:
        env.step()
        bus.check()
    assert all(processor.queued == 0 for processor in processors)
    return tickets, spans, processors


def fair_speed(demands: list[float], mine: float) -> float:
    """Max-min fairness by its definition: one level that caps everyone, as high as the capacity allows."""
    demands = [min(demand, CAPACITY) for demand in demands]
    mine = min(mine, CAPACITY)
    if mine == 0 or sum(demands) <= CAPACITY:
        return 1.0
    low, high = 0.0, CAPACITY
    for _ in range(60):
        level = (low + high) / 2
        low, high = (level, high) if sum(min(demand, level) for demand in demands) <= CAPACITY else (low, level)
    return min(mine, low) / mine


def plain_end_times(asks: list[Asked], load: RateTrace | None) -> list[float]:
    """Without priorities and cancellation, step by step: nothing changes between two steps."""
    edges_s, loads = (np.array([0.0, 1e3]), np.zeros(1)) if load is None else load.segments(0.0, 1e3)
    now, left, end_s = 0.0, [ask.cost.duration_s for ask in asks], [math.inf] * len(asks)
    while math.inf in end_s:
        piece = int(np.searchsorted(edges_s, now, side="right")) - 1
        running: dict[int, int] = {}
        for i, ask in enumerate(asks):
            if ask.at_s <= now and end_s[i] == math.inf:
                running.setdefault(ask.processor, i)
        demands = {i: asks[i].cost.n_bytes / asks[i].cost.duration_s for i in running.values()}
        speeds = {i: (1 - loads[piece]) * fair_speed(list(demands.values()), demands[i]) for i in demands}
        next_s = min([edges_s[piece + 1], *(ask.at_s for ask in asks if ask.at_s > now)])
        next_s = min([next_s, *(now + left[i] / speeds[i] for i in speeds)])
        for i in speeds:
            left[i] -= speeds[i] * (next_s - now)
            if left[i] < 1e-10:
                end_s[i] = next_s
        now = next_s
    return end_s


@given(asks, loads)
def test_it_equals_the_plain_model(asks: list[Asked], load: RateTrace | None) -> None:
    asks = [Asked(ask.at_s, ask.processor, ask.cost) for ask in asks]
    tickets, _, _ = run(asks, load)
    assert [ticket.end_s for ticket in tickets] == pytest.approx(plain_end_times(asks, load), abs=1e-7)


@given(asks, loads)
def test_one_op_at_a_time_and_each_at_most_once(asks: list[Asked], load: RateTrace | None) -> None:
    tickets, spans, processors = run(asks, load)
    assert len(spans) == sum(not ticket.cancelled for ticket in tickets)
    for processor in processors:
        mine = [span for span in spans if span.resource == processor.resource]
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(mine))
        assert processor.busy.busy_s(0, 1e9) == pytest.approx(sum(span.end_s - span.start_s for span in mine))
        speed = processor.speed(1e9)
        assert speed is None or speed <= 1 + 1e-9


@given(asks, loads)
def test_run_twice_it_tells_the_same(asks: list[Asked], load: RateTrace | None) -> None:
    assert run(asks, load)[1] == run(asks, load)[1]


@given(asks, loads, st.floats(0, 20))
def test_energy_equals_integration_by_hand(asks: list[Asked], load: RateTrace | None, until_s: float) -> None:
    _, spans, processors = run(asks, load)
    meter = EnergyMeter(base_w=2.0)
    meter.add("one", 3.0, 20.0, processors[0].busy)
    meter.add("two", 1.0, 5.0, processors[1].busy, processors[2].busy)
    # Between two neighbouring times at which anything starts or ends, every power is constant.
    times = sorted({0.0, until_s, *(t for span in spans for t in (span.start_s, span.end_s) if t < until_s)})
    one_j = two_j = 0.0
    for start_s, end_s in itertools.pairwise(times):
        active = {span.resource for span in spans if span.start_s <= start_s < span.end_s}
        one_j += (20.0 if "0" in active else 3.0) * (end_s - start_s)
        two_j += (5.0 if active & {"1", "2"} else 1.0) * (end_s - start_s)
    assert meter.energy_j(until_s) == pytest.approx({"base": 2 * until_s, "one": one_j, "two": two_j}, abs=1e-9)
