"""How much time is left, as progress says it."""

import pytest

from kvferry.cli.progress import Estimate


def test_the_rest_at_the_pace_so_far() -> None:
    now_s = 100.0
    estimate = Estimate(lambda: now_s)
    # 40 of 100 points were there already: they say nothing about the pace.
    assert estimate.in_words(40, 100) == ""
    now_s = 110.0
    # 20 points in 10 s: 40 more take 20 s
    assert estimate.in_words(60, 100) == "about 20 s left"
    assert estimate.in_words(100, 100) == ""


@pytest.mark.parametrize(
    ("took_s", "words"), [(0.001, "1 s"), (100, "100 s"), (150, "2 min"), (7200, "2 h"), (500_000, "6 days")]
)
def test_units_of_the_rest(took_s: float, words: str) -> None:
    now_s = 0.0
    estimate = Estimate(lambda: now_s)
    estimate.in_words(0, 2)
    now_s = took_s
    assert estimate.in_words(1, 2) == f"about {words} left"
