"""The figures of a trace, by hand and against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.traces.rate import RateTrace
from kvferry.traces.statistics import (
    autocorrelation,
    fade_lengths_s,
    means_over,
    quantiles,
    statistics_of,
    transfer_times_s,
)


def test_figures_are_weighted_by_time():
    # 10/s for 1 s and 20/s for 3 s: mean 70 / 4 = 17.5, variance (56.25 + 3 * 6.25) / 4 = 18.75.
    found = statistics_of(RateTrace(np.array([0.0, 1, 4]), np.array([10.0, 20])))
    assert found.mean == 17.5
    assert found.std == pytest.approx(18.75**0.5)
    assert (found.least, found.most, found.duration_s, found.pieces) == (10, 20, 4, 2)


def test_equal_pieces_give_numpys_figures():
    rates = np.random.default_rng(3).gamma(2, 50, size=501)
    found = statistics_of(RateTrace.from_samples(rates, 0.1))
    assert found.mean == pytest.approx(rates.mean())
    assert found.std == pytest.approx(rates.std())
    for name, level in (("p5", 5), ("median", 50), ("p95", 95)):
        assert getattr(found, name) == pytest.approx(np.percentile(rates, level, method="inverted_cdf"))


def test_one_piece_has_figures_too():
    found = statistics_of(RateTrace.constant(7))
    assert (found.mean, found.std, found.p5, found.median, found.p95) == (7, 0, 7, 7, 7)
    assert found.autocorrelation_1s == (None, None, None, None)
    assert found.std_1s is None


def test_quantiles_go_by_time_and_not_by_piece():
    # Down for 9 of 10 s, then 100 and 200: of three pieces the middle one has 100, of the time half is down.
    trace = RateTrace(np.array([0.0, 9, 9.5, 10]), np.array([0.0, 100, 200]))
    assert quantiles(trace, np.array([0.0, 0.5, 0.9, 0.91, 0.95, 0.96, 1.0])).tolist() == [0, 0, 0, 100, 100, 200, 200]


def test_means_over_windows_that_cut_pieces():
    # 1.5 s at 10, then 1.5 s at 30: seconds have 10, 20 (half and half) and 30.
    trace = RateTrace(np.array([0.0, 1.5, 3.0]), np.array([10.0, 30]))
    assert means_over(trace, 1.0).tolist() == [10, 20, 30]
    assert means_over(trace, 4.0).tolist() == []
    # Thirty tenths are three seconds, though not in floating point.
    assert len(means_over(RateTrace.from_samples(np.ones(3), 0.1), 0.1)) == 3


def test_autocorrelation_by_hand():
    # Deviations -1.5 -0.5 0.5 1.5: power 5; products at lag 1: 0.75 - 0.25 + 0.75 = 1.25.
    assert autocorrelation(np.array([1.0, 2, 3, 4]), 1) == pytest.approx(0.25)
    assert autocorrelation(np.array([1.0, 2, 3, 4]), 2) is None
    assert autocorrelation(np.full(10, 0.1), 1) is None


def test_fades_are_spells_below_a_tenth_of_the_mean():
    # Mean of 0 0 50 1 50 50 50 0 is 25.1: zeros and the 1 are fades, of 2, 1 and 1 pieces.
    trace = RateTrace.from_samples([0, 0, 50, 1, 50, 50, 50, 0], 0.5)
    assert fade_lengths_s(trace).tolist() == [1.0, 0.5, 0.5]
    found = statistics_of(trace)
    assert (found.fades, found.longest_fade_s, found.fade_share) == (3, 1.0, 0.5)


def test_transfers_wait_out_what_stands_still():
    # 4/s for 1 s, then nothing for 1 s: 2/s in the mean, so a usual second moves 2. From 0 it takes 0.5 s, from 0.75
    # there is 1 left, and the other 1 comes after the pause: at 2.25; from 1.5 on at 2.5.
    times_s = transfer_times_s(RateTrace.from_samples([4, 0], 1.0), 1.0)
    begins_s = np.linspace(0, 2, len(times_s), endpoint=False)
    assert np.interp([0, 0.75, 1.5], begins_s, times_s).tolist() == pytest.approx([0.5, 1.5, 1.0])
    # Half of the beginnings, up to 0.5, take 0.5; then it grows from 1.5 by what is left: the worst is just behind 0.5.
    assert times_s.max() == pytest.approx(1.5, abs=1e-3)
    assert transfer_times_s(RateTrace.constant(0), 1.0).tolist() == []


@settings(max_examples=20)
@given(rates=st.lists(st.integers(0, 100), min_size=2, max_size=20))
def test_transfers_depend_on_the_course_alone(rates):
    trace = RateTrace.from_samples([*rates, 1], 0.5)
    times_s = transfer_times_s(trace, 2.0)
    assert transfer_times_s(trace.with_rates(8.0 * trace.rates), 2.0) == pytest.approx(times_s, abs=1e-9)
    # None is quicker than the highest rate allows.
    assert times_s.min() >= 2.0 * trace.mean() / trace.rates.max() - 1e-9
