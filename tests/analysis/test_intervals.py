"""Intervals from samples of what is not known exactly, computed by hand."""

from math import exp, log

import numpy as np
import pytest

from kvferry.analysis.intervals import (
    Effect,
    beats,
    effect_of_choices,
    effect_of_errors,
    effect_of_number,
    intervals_of,
)

RATE = "throughput_tokens_per_s"


def linear(level: float) -> float:
    """A number that lies anywhere within a factor of e, up and down: eight of ten within 0.8."""
    return level


def every(key: str) -> bool:
    return True


def test_the_ends_of_one_number_are_the_runs_at_its_ends() -> None:
    own, less, more = (
        {"tpot_s": 2.0, "requests": 1.0},
        {"tpot_s": 1.5, "requests": 1.0},
        {"tpot_s": 3.0, "requests": 1.0},
    )
    effect = effect_of_number("decoding", own, less, more, linear, every)
    assert intervals_of(own, [effect]) == {"tpot_s": pytest.approx((1.5, 3.0))}, "what does not move has none"
    # Halfway to the outer samples lies half the logarithm, on each side of its own.
    assert effect.deviations["tpot_s"][2] == pytest.approx(log(1.5 / 2) / 2)
    assert effect.deviations["tpot_s"][[0, 4, 8]] == pytest.approx([log(1.5 / 2), 0.0, log(3 / 2)])


def test_a_metric_that_the_number_does_not_speak_of_has_no_interval() -> None:
    own = {"tpot_s": 2.0, "ttft_s": 1.0}
    effect = effect_of_number(
        "decoding", own, {"tpot_s": 1, "ttft_s": 0.9}, {"tpot_s": 3, "ttft_s": 1.1}, linear, "tpot_s".__eq__
    )
    assert list(intervals_of(own, [effect])) == ["tpot_s"]


def test_of_choices_the_least_and_the_most_are_the_ends() -> None:
    own = {RATE: 8.0, "reads": 5.0}
    effect = effect_of_choices(
        "runtime", own, {"b": own, "c": {RATE: 10.0, "reads": 5.0}, "a": {RATE: 4.0, "reads": 5.0}}, every
    )
    assert np.exp(effect.deviations[RATE]) == pytest.approx([0.5, 1.0, 1.25]), "in the order of their names"
    assert intervals_of(own, [effect]) == {RATE: pytest.approx((4.0, 10.0))}


def test_independent_errors_are_less_than_their_sum_and_more_than_either() -> None:
    """Two numbers of nine samples each, 0.025 apart: of the 81 sums, the largest is there once, the next twice, then
    three and four times. The 73.8th, with nine tenths of them and of one more below it, is 5 x 0.025."""
    one, other = (effect_of_errors(name, {RATE: lambda level: level / 8}) for name in ("a", "b"))
    ((low, high),) = intervals_of({RATE: 1.0}, [one, other]).values()
    assert (log(low), log(high)) == pytest.approx((-0.125, 0.125))


def test_one_system_beats_another_in_the_samples_that_both_share() -> None:
    """Both are slower on slower hardware: the faster one stays it, however wide the intervals are."""
    shared = [Effect("decoding", {RATE: np.log([0.5, 1.0, 2.0])})]
    assert beats(RATE, (10.0, shared), (9.0, shared)) == 1.0
    assert beats(RATE, (9.0, shared), (10.0, shared)) == 0.0
    # 5, 10, 20 beside 6, 9, 12, sample by sample.
    other = [Effect("decoding", {RATE: np.log([2 / 3, 1.0, 4 / 3])})]
    assert beats(RATE, (10.0, shared), (9.0, other)) == pytest.approx(2 / 3)


def test_effects_of_one_system_alone_are_combined_with_all_of_the_other() -> None:
    """10 or 20 beside 9, 15 or 25: ahead in 1 and 2 of 3."""
    one = [Effect("runs of a", {RATE: np.log([1.0, 2.0])})]
    other = [Effect("runs of b", {RATE: np.log([0.9, 1.5, 2.5])})]
    assert beats(RATE, (10.0, one), (10.0, other)) == pytest.approx(3 / 6)
    # Of times, the smaller is the better; a tie is half.
    assert beats("ttft_s", (1.0, []), (2.0, [])) == 1.0
    assert beats("ttft_s", (2.0, []), (2.0, [])) == 0.5


def test_nine_samples_of_errors_are_their_quantiles() -> None:
    effect = effect_of_errors("runs", {"ttft_s": lambda level: 2 * level})
    assert np.exp(effect.deviations["ttft_s"]) == pytest.approx([exp(2 * (2 * n / 10 - 1)) for n in range(1, 10)])
