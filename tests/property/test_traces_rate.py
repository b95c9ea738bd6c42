"""RateTrace against exact rational arithmetic, over spans of many cycles."""

import itertools
import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvferry.traces.derived import shifted, with_outages
from kvferry.traces.rate import RateTrace

RATES = st.one_of(st.just(0.0), st.floats(1e-3, 1e10))


@st.composite
def traces(draw):
    n = draw(st.integers(1, 12))
    edges = [0.0]
    for width in draw(st.lists(st.floats(0.05, 50), min_size=n, max_size=n)):
        edges.append(edges[-1] + width)
    rates = draw(st.lists(RATES, min_size=n, max_size=n))
    how = draw(st.sampled_from(["loop", "hold", "end"]))
    loop_from = edges[draw(st.integers(0, n - 1))] if how == "loop" else 0.0
    return RateTrace(np.array(edges), np.array(rates), how, loop_from)


def times_of(trace):
    """A time of the replay: on an edge, within the first play, or many cycles on."""
    return st.one_of(
        st.sampled_from(trace.edges_s.tolist()),
        st.floats(0, trace.duration_s),
        st.floats(0, trace.duration_s * 50),
    )


def exact_up_to(trace, t):
    """The integral from 0 to t, by summing pieces as fractions."""
    edges = [Fraction(e) for e in trace.edges_s.tolist()]
    rates = [Fraction(r) for r in trace.rates.tolist()]
    t = Fraction(t)

    def played(until):
        return sum(r * (min(b, until) - a) for a, b, r in zip(edges, edges[1:], rates) if a < until)

    if t <= edges[-1]:
        return played(t)
    if trace.on_end != "loop":
        return played(edges[-1]) + (rates[-1] * (t - edges[-1]) if trace.on_end == "hold" else 0)
    loop_from = Fraction(trace.loop_from_s)
    period = edges[-1] - loop_from
    cycles = (t - loop_from) // period
    per_cycle = played(edges[-1]) - played(loop_from)
    return played(loop_from) + cycles * per_cycle + played(t - cycles * period) - played(loop_from)


def resolution(trace, *times):
    """What rounding the times and the sums over the trace, to 2**-53 of each, can change in an amount."""
    of_times = float(trace.rates.max()) * sum(math.ulp(t) for t in (*times, trace.duration_s))
    return 8 * (of_times + math.ulp(trace.mean() * trace.duration_s))


@given(st.data())
def test_amount_is_the_exact_integral(data):
    trace = data.draw(traces())
    start, end = sorted((data.draw(times_of(trace)), data.draw(times_of(trace))))
    exact = float(exact_up_to(trace, end) - exact_up_to(trace, start))
    assert math.isclose(trace.amount(start, end), exact, rel_tol=1e-12, abs_tol=resolution(trace, start, end))


@given(st.data())
def test_finish_is_the_inverse_of_amount(data):
    trace = data.draw(traces())
    start = data.draw(times_of(trace))
    amount = data.draw(st.floats(1e-3, 1e13))
    finish = trace.finish_s(start, amount)
    if finish == math.inf:
        # What lies ahead is too little, however long one waits.
        assert (
            trace.on_end == "end"
            or not trace.rates[trace.edges_s[:-1] >= trace.loop_from_s].any()
            or (trace.on_end == "hold" and trace.rates[-1] == 0)
        )
        assert trace.amount(start, start + trace.duration_s * 3) < amount * (1 + 1e-12)
        return
    assert finish >= start
    delivered = trace.amount(start, finish)
    assert math.isclose(delivered, amount, rel_tol=1e-9, abs_tol=resolution(trace, start, finish))
    # The earliest: something was still arriving just before, or was lacking, so no outage was waited for.
    just_before = max(start, finish - 16 * math.ulp(max(finish, trace.duration_s)))
    assert finish == start or trace.amount(just_before, finish) > 0 or trace.amount(start, just_before) < amount


@given(st.data())
def test_amounts_add_up(data):
    trace = data.draw(traces())
    a, b, c = sorted(data.draw(times_of(trace)) for _ in range(3))
    whole = trace.amount(a, c)
    parts = trace.amount(a, b) + trace.amount(b, c)
    assert math.isclose(whole, parts, rel_tol=1e-12, abs_tol=resolution(trace, a, b, c))


@given(st.data())
def test_segments_hold_the_same_amount(data):
    trace = data.draw(traces())
    start, end = sorted((data.draw(times_of(trace)), data.draw(times_of(trace))))
    if end > start:
        edges, rates = trace.segments(start, end)
        assert (edges[0], edges[-1]) == (start, end)
        assert (np.diff(edges) > 0).all()
        total = float(np.sum(rates * np.diff(edges)))
        tolerance = resolution(trace, start, end) * len(edges)
        assert math.isclose(total, trace.amount(start, end), rel_tol=1e-9, abs_tol=tolerance)


@given(st.data())
def test_shifting_is_starting_later(data):
    trace = data.draw(traces())
    offset = data.draw(times_of(trace))
    a, b = sorted((data.draw(times_of(trace)), data.draw(times_of(trace))))
    tolerance = 100 * resolution(trace, offset + b)
    assert math.isclose(
        shifted(trace, offset).amount(a, b), trace.amount(offset + a, offset + b), rel_tol=1e-9, abs_tol=tolerance
    )


@given(st.data())
def test_an_outage_takes_what_was_due_in_it_and_nothing_else(data):
    trace = data.draw(traces())
    start, end = sorted((data.draw(times_of(trace)), data.draw(times_of(trace))))
    if end - start > 1e-6:
        broken = with_outages(trace, [(start, end)])
        horizon = data.draw(st.floats(1, 3)) * max(end, trace.duration_s)
        expected = trace.amount(0, start) + trace.amount(end, horizon)
        assert broken.amount(start, end) <= resolution(trace, end)
        tolerance = 100 * resolution(trace, horizon)
        assert math.isclose(broken.amount(0, horizon), expected, rel_tol=1e-9, abs_tol=tolerance)


@given(st.data())
def test_more_time_never_delivers_less(data):
    trace = data.draw(traces())
    start = data.draw(times_of(trace))
    amounts = sorted(data.draw(st.lists(st.floats(0, 1e12), min_size=2, max_size=6)))
    finishes = [trace.finish_s(start, amount) for amount in amounts]
    for sooner, later in itertools.pairwise(finishes):
        assert sooner <= later or trace.amount(later, sooner) <= resolution(trace, start, sooner)
