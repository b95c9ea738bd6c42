"""Rates over time: what is read off them, and how near a series comes that nothing was fitted on."""

import numpy as np
import pytest

from kvferry.analysis.reproduction.sustained import FOLDER, beside_ours, sustained_picture, sustained_rows
from kvferry.traces.sustained import Rates, load_series


def test_what_is_read_off_a_series() -> None:
    # Below 90 of 100 between 95 at 7.5 s and 75 at 12.5 s: a quarter of the way.
    rates = Rates(5.0, np.array([100.0, 95.0, 75.0, 60.0]))
    assert rates.throttled_after_s == pytest.approx(7.5 + 5 / 4)
    assert rates.throttled_per_s == 67.5
    assert Rates(5.0, np.array([100.0, 95.0])).throttled_after_s is None
    # Slower for a while, and no more.
    assert Rates(5.0, np.array([100.0, 60.0, 95.0, 95.0])).throttled_after_s is None
    # Settled after two minutes: pieces of a minute.
    assert Rates(60.0, np.array([100.0, 80.0, 60.0, 50.0, 55.0])).throttled_per_s == 55.0


def test_the_series_that_was_left_out_is_as_near_as_the_docs_say() -> None:
    left_out = {name: series for name, series in load_series(FOLDER).items() if not series[0].fitted}
    assert len(left_out) == 1
    # Of ten minutes the first four, by which it has settled.
    rows = [beside_ours(n, spec, Rates(whole.piece_s, whole.per_s[:48])) for n, (spec, whole) in left_out.items()]
    assert abs(rows[0]["throttled_tokens_per_s_error"]) < 0.1
    assert abs(rows[0]["throttled_after_s_error"]) < 0.25
    (told,) = sustained_rows({"sustained": rows})
    assert told["throttled tokens/s"].startswith("20.2, 18.")
    assert len(sustained_picture(rows).axes) == 1
