"""What a user sees of tokens from a cloud and from the device."""

from dataclasses import replace

import numpy as np
import pytest
from assisted_phone import PHONE
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.assist.assistance import Smoothing
from kvferry.policies.assist.optimiser import best_setting
from kvferry.policies.assist.speed_controller import own_times_s, shown_times_s


def test_slots_and_then_the_devices_own() -> None:
    # Slots at 1, 3 and 5; the second token comes 0.5 late, the third keeps its slot. The device has the fourth at 4.
    shown = shown_times_s(np.array([1.0, 3.5, 4.0]), np.array([4.0, 8.0]), 2.0)
    assert shown.tolist() == [1.0, 3.5, 5.0, 5.0, 8.0]


def shown_of(smoothing: Smoothing, late_s: np.ndarray) -> np.ndarray:
    of = replace(PHONE, smoothing=smoothing)
    best = best_setting(of)
    arrivals = of.cloud_ttft_s + of.cloud_tpot_s * np.arange(best.tokens)
    arrivals[1:] += late_s[: best.tokens - 1]
    own = own_times_s(of.device_ttft_s(best.ratio), of.device_tpot_s, best.tokens, best.tokens + 20)
    return shown_times_s(arrivals, own, of.smoothed_tpot_s(best.ratio, best.tokens))


def test_the_papers_pace_stalls_once() -> None:
    gaps = np.diff(shown_of("paper", np.zeros(100)))
    # TTFT_d - prefill(rl), which Eq. 4 leaves out, and the device's own pace.
    assert gaps.max() == pytest.approx(0.95 + 0.05 + 0.04)
    assert gaps.argmax() == 35


@given(late_s=st.lists(st.floats(0, 2.0), min_size=60, max_size=60))
def test_causal_pace_never_waits_longer_than_promised_and_the_links_jitter(late_s: list[float]) -> None:
    best = best_setting(PHONE)
    promised_s = PHONE.smoothed_tpot_s(best.ratio, best.tokens)
    gaps = np.diff(shown_of("causal", np.array(late_s)))
    assert gaps.max() <= promised_s + max(late_s) + 1e-9
    assert gaps.min() >= 0
