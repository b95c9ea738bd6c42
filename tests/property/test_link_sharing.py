"""The link against a plain, slow fluid model, and laws that must hold for any trace, load and cancellation."""

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.span import Span
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.sim.link import Link
from kvferry.traces.rate import RateTrace


@dataclass(frozen=True)
class Asked:
    """A transfer: when it is handed over, for which flow, how much, and when it is cancelled, if ever."""

    at_s: float
    flow: int
    n_bytes: float
    cancelled_s: float | None = None


# Coarse grids on purpose: they make ties, which are where such models break.
times_s = st.one_of(st.integers(0, 8).map(float), st.floats(0, 8))
sizes = st.one_of(st.integers(0, 300).map(float), st.floats(0.01, 1e4))
asked = st.builds(Asked, times_s, st.integers(0, 3), sizes, st.one_of(st.none(), times_s))
loads = st.lists(asked, min_size=1, max_size=12).map(lambda asks: sorted(asks, key=lambda ask: ask.at_s))


@st.composite
def traces(draw: st.DrawFn) -> RateTrace:
    """Up to six pieces with outages among them, looped; something is delivered in each loop."""
    durations = draw(st.lists(st.sampled_from([0.125, 0.25, 0.5, 1.0, 1.7]), min_size=1, max_size=6))
    rates = [draw(st.one_of(st.just(0.0), st.floats(1, 500))) for _ in durations]
    rates[draw(st.integers(0, len(rates) - 1))] = draw(st.floats(1, 500))
    return RateTrace(np.cumsum([0.0, *durations]), np.array(rates), "loop")


def run(trace: RateTrace, load: list[Asked], rtt_s: float = 0.0) -> tuple[Link, list[Ticket], list[Span]]:
    env = simpy.Environment()
    spans: list[Span] = []
    link = Link(env, trace, rtt_s, spans.append)
    tickets: list[Ticket] = []

    def hand_over():  # type: ignore[no-untyped-def]
        for ask in load:
            yield env.timeout(max(0.0, ask.at_s - env.now))
            ticket = link.transfer(ask.flow, ask.n_bytes)
            tickets.append(ticket)
            if ask.cancelled_s is not None:
                wait = env.timeout(max(0.0, ask.cancelled_s - env.now))
                wait.callbacks.append(lambda _, ticket=ticket: ticket.cancel())

    env.process(hand_over())
    env.run()
    link.bottleneck.check()
    return link, tickets, spans


def plain_finish_times(trace: RateTrace, load: list[Asked]) -> list[float]:
    """The same without cancellation, step by step: the rate and who shares it are constant between two steps."""
    edges_s, rates = (values.tolist() for values in trace.segments(0.0, 1000.0))
    now, left = 0.0, [ask.n_bytes for ask in load]
    finish_s = [math.inf] * len(load)
    while math.inf in finish_s:
        piece = bisect_right(edges_s, now) - 1
        heads: dict[int, int] = {}
        for i, ask in enumerate(load):
            if ask.at_s <= now and finish_s[i] == math.inf:
                heads.setdefault(ask.flow, i)
        next_s = min([edges_s[piece + 1], *(ask.at_s for ask in load if ask.at_s > now)])
        for i in heads.values():
            if left[i] <= 0:
                finish_s[i] = next_s = now
            elif rates[piece]:
                next_s = min(next_s, now + left[i] * len(heads) / rates[piece])
        for i in heads.values():
            left[i] -= rates[piece] / len(heads) * (next_s - now)
            left[i] = 0.0 if left[i] < 1e-9 else left[i]
        now = next_s
    return finish_s


@given(traces(), loads)
def test_it_equals_the_plain_fluid_model(trace: RateTrace, load: list[Asked]) -> None:
    load = [Asked(ask.at_s, ask.flow, min(ask.n_bytes, 40.0)) for ask in load]
    # All ends within the 1,000 s that the plain model covers: 480 bytes at 40 x 0.125 in 8.6 s.
    trace = trace.with_rates(40.0 * trace.rates)
    _, tickets, _ = run(trace, load)
    # Compared by what the trace offers until then: a last byte may fall before or after an outage by rounding alone.
    ends = [trace.amount(0.0, ticket.end_s or 0.0) for ticket in tickets]
    assert ends == pytest.approx([trace.amount(0.0, end_s) for end_s in plain_finish_times(trace, load)], abs=1e-6)


@given(traces(), loads, st.sampled_from([0.0, 0.25, 0.4]))
def test_bytes_equal_the_integral_of_the_trace(trace: RateTrace, load: list[Asked], rtt_s: float) -> None:
    link, tickets, spans = run(trace, load, rtt_s)
    delivered = sum(
        ticket.value.bytes_done if isinstance(ticket.value, Cancelled) else ask.n_bytes
        for ticket, ask in zip(tickets, load, strict=True)
    )
    offered = sum(trace.amount(a, b) for a, b in link.busy.intervals(0.0, link.env.now))
    assert delivered == pytest.approx(offered, rel=1e-9, abs=1e-6)
    assert link.bottleneck.delivered_bytes == pytest.approx(delivered, rel=1e-12)
    assert sum(span.n_bytes for span in spans) == pytest.approx(delivered, rel=1e-12)
    assert link.queued == 0
    # Something is on its way exactly while a span is open.
    assert sum(b - a for a, b in link.busy.intervals(0.0, link.env.now)) == pytest.approx(_covered_s(spans), abs=1e-9)


@given(traces(), loads, st.sampled_from([0.0, 0.25, 0.4]))
def test_each_flow_delivers_in_order(trace: RateTrace, load: list[Asked], rtt_s: float) -> None:
    _, tickets, _ = run(trace, load, rtt_s)
    for flow in range(4):
        ends_s = [
            ticket.end_s or 0.0
            for ticket, ask in zip(tickets, load, strict=True)
            if ask.flow == flow and not ticket.cancelled
        ]
        assert ends_s == sorted(ends_s)


@given(traces(), loads, st.floats(1, 5), st.lists(st.floats(0, 200), min_size=6, max_size=6))
def test_more_bandwidth_never_delivers_later(
    trace: RateTrace, load: list[Asked], factor: float, more: list[float]
) -> None:
    load = [Asked(ask.at_s, ask.flow, ask.n_bytes) for ask in load]
    faster = RateTrace(trace.edges_s, trace.rates * factor + np.array(more)[: len(trace.rates)], trace.on_end)
    _, slow, _ = run(trace, load, 0.1)
    _, fast, _ = run(faster, load, 0.1)
    for before, after in zip(slow, fast, strict=True):
        assert before.end_s is not None
        assert after.end_s is not None
        assert after.end_s <= before.end_s * (1 + 1e-9) + 1e-9


@given(traces(), loads)
def test_run_twice_it_tells_the_same(trace: RateTrace, load: list[Asked]) -> None:
    assert run(trace, load, 0.1)[2] == run(trace, load, 0.1)[2]


def _covered_s(spans: list[Span]) -> float:
    covered_s, until_s = 0.0, 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        covered_s += max(0.0, span.end_s - max(span.start_s, until_s))
        until_s = max(until_s, span.end_s)
    return covered_s
