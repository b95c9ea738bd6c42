"""RateTrace by hand: every expected number is worked out in the comment above it."""

import math
import pickle

import numpy as np
import pytest

from kvferry.traces.derived import course, shifted, trimmed, with_outages
from kvferry.traces.rate import RateTrace

# 100/s for 2 s, nothing for 1 s, 50/s for 2 s: 300 in 5 s.
EDGES = np.array([0.0, 2.0, 3.0, 5.0])
RATES = np.array([100.0, 0.0, 50.0])


def trace(on_end="loop", loop_from_s=0.0):
    return RateTrace(EDGES, RATES, on_end, loop_from_s)


def test_rates_hold_from_their_edge_on():
    assert [trace().rate_at(t) for t in (0, 1.9, 2, 2.9, 3, 4.9, 5, 7)] == [100, 100, 0, 0, 50, 50, 100, 0]
    assert [trace("hold").rate_at(t) for t in (4.9, 5, 1e9)] == [50, 50, 50]
    assert [trace("end").rate_at(t) for t in (4.9, 5, 1e9)] == [50, 0, 0]
    # Looped from 3 s: 3..5 again and again.
    assert [trace("loop", 3.0).rate_at(t) for t in (1, 2.5, 5, 6.9, 1001)] == [100, 0, 50, 50, 50]


def test_amount_is_the_area():
    assert trace().amount(0, 5) == 300
    assert trace().amount(1, 4) == 100 + 0 + 50
    assert trace().amount(1, 1) == 0
    # 1..5 is 200, two whole cycles 600, then 1 s of 100.
    assert trace().amount(1, 16) == 900
    assert trace("hold").amount(4, 7) == 50 * 3
    assert trace("hold").amount(10, 12) == 50 * 2
    assert trace("end").amount(4, 7) == 50
    assert trace("end").amount(10, 12) == 0
    # 300 at first, then 2 s at 50 for each further 2 s.
    assert trace("loop", 3.0).amount(0, 9) == 300 + 200


def test_finish_is_the_earliest_time():
    assert trace().finish_s(0, 0) == 0
    assert trace().finish_s(7, 0) == 7
    assert trace().finish_s(math.inf, 5) == math.inf  # behind what never ends
    assert trace().finish_s(0, 150) == 1.5
    assert trace().finish_s(0, 200) == 2.0  # not 3: the outage after it delivers nothing
    assert trace().finish_s(2.5, 10) == 3.2
    assert trace().finish_s(0, 300) == 5.0
    assert trace().finish_s(0, 1000) == 16.0  # three cycles are 900, then 1 s
    assert trace().finish_s(6, 100 + 100 + 300) == 15.0  # 1 s of 100, 2 s of 50, and a whole cycle
    assert trace("hold").finish_s(0, 400) == 7.0
    assert trace("hold").finish_s(9, 100) == 11.0
    assert trace("end").finish_s(0, 300) == 5.0
    assert trace("end").finish_s(0, 300.1) == math.inf
    assert trace("end").finish_s(9, 1) == math.inf
    assert trace().finish_s(0, math.inf) == math.inf


@pytest.mark.parametrize("of", [trace(), trace("hold"), trace("end"), trace("loop", 3.0)])
@pytest.mark.parametrize("amount", [0, 10, 120, 700])
def test_several_in_turn_finish_as_one_behind_the_other(of, amount):
    starts_s, done_s, found = [0.0, 0.05, 0.9, 1.9, 4.0, 4.9, 5.0, 17.2, math.inf], 0.02, []
    for start_s in starts_s:
        done_s = of.finish_s(max(start_s, done_s), amount)
        found.append(done_s)
    assert of.finish_in_turn_s(starts_s, amount, 0.02) == found


def test_the_second_waits_for_the_first():
    # 0.1 s each at 100/s; the second comes while the first is served, the third into the outage until 3 s, at 50/s.
    assert trace().finish_in_turn_s([0, 0.05, 2.5], 10) == [0.1, 0.2, 3.2]


def test_a_cycle_that_ends_in_an_outage_is_not_waited_for():
    # 10/s for 1 s, nothing for 1 s. 30 are there after the third second of sending: at 5 s, not 6.
    pulses = RateTrace(np.array([0.0, 1.0, 2.0]), np.array([10.0, 0.0]))
    assert pulses.finish_s(0, 10) == 1.0
    assert pulses.finish_s(0, 30) == 5.0
    assert pulses.finish_s(1.5, 20) == 5.0


def test_a_rounding_is_not_waited_for():
    # 0.001 s to 1.001 s is 1 s, yet in floating point 2**-53 short of it; the next second of sending starts at 2.002 s.
    trace = RateTrace(np.array([0.0, 0.001, 1.001, 2.001]), np.array([0.0, 1.0, 0.0]))
    assert 1.001 - 0.001 < 1
    assert trace.finish_s(0, 1) == 1.001
    assert trace.finish_s(0, 4) == pytest.approx(3 * 2.001 + 1.001)


def test_a_dead_trace_never_delivers():
    for on_end in ("loop", "hold", "end"):
        dead = RateTrace(np.array([0.0, 1.0]), np.array([0.0]), on_end)
        assert dead.finish_s(0.5, 1e-30) == math.inf
        assert dead.amount(0, 1e6) == 0


def test_a_constant_rate():
    constant = RateTrace.constant(106.25e6)
    assert constant.finish_s(3.0, 106.25e6 * 2) == 5.0
    assert constant.amount(1e6, 1e6 + 4) == 4 * 106.25e6
    assert constant.mean() == 106.25e6
    assert RateTrace.from_samples([1, 2, 3], 0.5).duration_s == 1.5


def test_long_after_the_start_a_short_span_is_as_exact():
    # A day of replay in: 17,280 cycles of 5 s, then 1 ms at 100/s.
    day = 86_400.0
    assert trace().amount(day, day + 2**-10) == 100 * 2**-10
    assert trace().finish_s(day, 100 * 2**-10) == day + 2**-10


def test_segments_unroll_the_loop():
    edges, rates = trace().segments(4, 8.5)
    assert edges.tolist() == [4, 5, 7, 8, 8.5]
    assert rates.tolist() == [50, 100, 0, 50]
    edges, rates = trace("hold").segments(4, 9)
    assert (edges.tolist(), rates.tolist()) == ([4, 9], [50])
    edges, rates = trace("end").segments(4, 9)
    assert (edges.tolist(), rates.tolist()) == ([4, 5, 9], [50, 0])
    edges, rates = trace("loop", 3.0).segments(0, 6)
    assert (edges.tolist(), rates.tolist()) == ([0, 2, 3, 5, 6], [100, 0, 50, 50])
    with pytest.raises(ValueError, match="pieces"):
        trace().segments(0, 1e9)


def test_derived_traces():
    assert trace().with_rates(2 * trace().rates).amount(0, 5) == 600
    middle = trimmed(trace(), 1, 4)
    assert (middle.edges_s.tolist(), middle.rates.tolist()) == ([0, 1, 2, 3], [100, 0, 50])
    later = shifted(trace(), 4)
    assert (later.edges_s.tolist(), later.rates.tolist()) == ([0, 1, 3, 4, 5], [50, 100, 0, 50])
    assert shifted(trace("hold"), 9).rate_at(0) == 50
    assert shifted(trace("end"), 9).rate_at(0) == 0
    assert shifted(trace("loop", 3.0), 1).amount(0, 8) == trace("loop", 3.0).amount(1, 9)
    share = RateTrace(np.array([0.0, 1.0, 2.0]), np.array([0.25, 1.0]))
    assert share.with_rates(1 - share.rates).rates.tolist() == [0.75, 0.0]
    with pytest.raises(ValueError):
        trace().with_rates(1 - trace().rates)


def test_an_outage_happens_once():
    broken = with_outages(trace(), [(6, 7)])
    # The first cycle is whole, the second loses the 100 of its second second, the third is whole again.
    assert [broken.amount(a, a + 5) for a in (0, 5, 10, 500)] == [300, 200, 300, 300]
    assert broken.rate_at(6.5) == 0
    assert broken.finish_s(0, 500) == 10.0
    held = with_outages(RateTrace.constant(10), [(0, 1), (4, 6)])
    assert held.amount(0, 10) == 70
    assert held.finish_s(0, 40) == 7.0
    assert with_outages(trace("end"), [(4, 8)]).amount(0, 100) == 250
    # Overlapping and unordered ones are down while any is: 1..5.
    assert with_outages(RateTrace.constant(10), [(3, 5), (1, 4), (2, 3)]).amount(0, 10) == 60
    assert with_outages(trace(), []).amount(0, 10) == 600
    with pytest.raises(ValueError):
        with_outages(trace(), [(3, 2)])


def test_a_long_outage_is_one_piece():
    broken = with_outages(RateTrace.from_samples([1.0, 3.0], 0.1), [(1.0, 1e7)])
    assert len(broken.rates) < 20
    assert broken.amount(0, 1e7) == pytest.approx(2.0)
    assert broken.amount(1e7, 1e7 + 1) == pytest.approx(2.0)


def test_outages_are_a_product_with_what_is_up():
    # Loops, holds and ends; before, within and after the trace.
    up = RateTrace(np.array([0.0, 0.5, 1.5, 6.0, 7.5, 8.5]), np.array([1.0, 0.0, 1.0, 0.0, 1.0]), "hold")
    for on_end in ("loop", "hold", "end"):
        broken, whole = with_outages(trace(on_end), [(0.5, 1.5), (6.0, 7.5)]), trace(on_end)
        for t_s in np.arange(0, 30, 0.25).tolist():
            assert broken.rate_at(t_s) == whole.rate_at(t_s) * up.rate_at(t_s)


def test_a_course_for_drawing_has_so_many_pieces_at_most():
    exact, drawn = trace().segments(1, 9), course(trace(), 1, 9, 100)
    assert [part.tolist() for part in drawn] == [part.tolist() for part in exact]
    edges, rates = course(trace(), 0, 1e9, 1000)
    assert (len(edges), len(rates)) == (1001, 1000)
    assert (rates * np.diff(edges)).sum() == pytest.approx(trace().amount(0, 1e9))


@pytest.mark.parametrize(
    ("edges", "rates", "on_end", "loop_from_s"),
    [
        ([0.0], [], "loop", 0),
        ([0, 1, 2], [1], "loop", 0),
        ([1, 2], [1], "loop", 0),
        ([0, 1, 1], [1, 2], "loop", 0),
        ([0, 2, 1], [1, 2], "loop", 0),
        ([0, math.nan], [1], "loop", 0),
        ([0, math.inf], [1], "loop", 0),
        ([0, 1], [-1], "loop", 0),
        ([0, 1], [math.nan], "loop", 0),
        ([0, 1], [math.inf], "loop", 0),
        ([0, 1e10], [1e300], "loop", 0),
        ([0, 1], [1], "stop", 0),
        ([0, 1, 2], [1, 1], "loop", 0.5),
        ([0, 1, 2], [1, 1], "loop", 2),
    ],
)
def test_what_is_no_trace_is_refused(edges, rates, on_end, loop_from_s):
    with pytest.raises(ValueError):
        RateTrace(np.array(edges, dtype=float), np.array(rates, dtype=float), on_end, loop_from_s)


def test_times_and_amounts_outside_the_replay_are_refused():
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError):
            trace().rate_at(wrong)
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError):
            trace().finish_s(wrong, 1)
    with pytest.raises(ValueError):
        trace().amount(2, 1)
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError):
            trace().finish_s(0, wrong)


def test_the_arrays_cannot_be_changed_and_the_trace_travels():
    with pytest.raises(ValueError):
        trace().rates[0] = 5
    copy = pickle.loads(pickle.dumps(trace()))  # noqa: S301 - our own object, as sweeps send it to workers
    assert copy.amount(1, 16) == 900
