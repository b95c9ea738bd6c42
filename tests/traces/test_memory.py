"""The memory of a link: correlations of rates and of scores by theory, and what a short recording shows of them."""

from statistics import NormalDist

import numpy as np
import pytest

from kvferry.traces.generate import Memory
from kvferry.traces.memory import as_memory, memory_of, rate_correlations, seen_correlations

RHO = np.array([0.1, 0.5, 0.9])


def remembering(samples: int, time: float, rng: np.random.Generator) -> np.ndarray:
    keep = np.exp(-1 / time)
    value, course = rng.standard_normal(), []
    for step in rng.standard_normal(samples):
        value = keep * value + np.sqrt(1 - keep**2) * step
        course.append(value)
    return np.array(course)


def test_correlations_of_scores_and_of_their_rates():
    # Uniform rates: 6 / pi * asin(rho / 2), a textbook identity; normal ones: the same as the scores.
    assert rate_correlations(np.linspace(0, 1, 4001))(RHO) == pytest.approx(6 / np.pi * np.arcsin(RHO / 2), abs=0.003)
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 4001) for i in range(4001)])
    assert rate_correlations(normal)(RHO) == pytest.approx(RHO, abs=0.003)
    # A link that is either up or down remembers less than its scores: 2 / pi * asin(rho).
    up_or_down = rate_correlations(np.repeat([0.0, 1.0], 2000))
    assert up_or_down(RHO) == pytest.approx(2 / np.pi * np.arcsin(RHO), abs=0.003)


def test_a_short_recording_shows_less_than_there_is():
    # Four samples, c = 1, 1/2, 0, 0: all pairs have (4 + 2 * 3 * 1/2) / 16 = 7/16 in common: (1/2 - 7/16) / (9/16),
    # of which three of four pairs are left at lag 1; at lag 2 two.
    halves = seen_correlations(lambda lags: np.where(lags == 1, 0.5, 0.0), np.array([1, 2]), 4)
    assert halves == pytest.approx([3 / 4 / 9, -2 / 4 * 7 / 9])
    # Twenty times as long as its memory: of exp(-0.5) = 0.61 at half of it 0.55 is seen.
    lags = np.array([1, 15, 30])
    rng = np.random.default_rng(5)
    products, power = np.zeros(3), 0.0
    for _ in range(400):
        deviations = (course := remembering(600, 30, rng)) - course.mean()
        products += [deviations[:-lag] @ deviations[lag:] for lag in lags]
        power += deviations @ deviations
    expected = seen_correlations(lambda lags: np.exp(-lags / 30), lags, 600)
    assert expected[1] == pytest.approx(0.55, abs=0.005)
    assert products / power == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_the_memory_that_was_there_is_found(seed):
    # A quarter forgets within 4 samples, the rest within 60: that most rates are near either end
    # bends their correlations.
    rng = np.random.default_rng(seed)
    score = 0.5 * remembering(20_000, 4, rng) + 0.75**0.5 * remembering(20_000, 60, rng)
    quick, slow = memory_of(np.tanh(2 * score), 0.1, 100.0)
    assert (quick.share, slow.share) == pytest.approx((0.25, 0.75), abs=0.15)
    assert (quick.time_s, slow.time_s) == pytest.approx((0.4, 6.0), rel=0.6)
    at_step = quick.share * np.exp(-0.1 / quick.time_s) + slow.share * np.exp(-0.1 / slow.time_s)
    assert at_step == pytest.approx(0.25 * np.exp(-1 / 4) + 0.75 * np.exp(-1 / 60), abs=0.015)


def test_times_that_no_recording_tells_apart_are_one():
    # A quarter at 6 s and three at 8 s: 7.5 s in the mean. Twice as long is another memory.
    assert as_memory((0.25, 6.0, 0.75, 8.0)) == (Memory(share=1.0, time_s=7.5),)
    assert as_memory((0.25, 16.0, 0.75, 8.0)) == (Memory(share=0.75, time_s=8.0), Memory(share=0.25, time_s=16.0))
    assert as_memory((0.0, 1.0, 0.4, 8.0)) == (Memory(share=0.4, time_s=8.0),)
