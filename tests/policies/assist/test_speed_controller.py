"""What a user sees of tokens from a cloud and from the device, as an answer is shown in the modelled world."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from assisted_phone import PHONE, smoothed_tpot_s
from hypothesis import given
from hypothesis import strategies as st

from kvferry.pipelines.assist.answer import Answer
from kvferry.policies.assist.assistance import Smoothing
from kvferry.policies.assist.optimiser import best_setting
from kvferry.policies.assist.speed_controller import SpeedController
from kvferry.sim.display import SimDisplay


def shown(came_s: list[float], pace_s: float, own_s: float, tpot_s: float, tokens: int, from_cloud: int) -> np.ndarray:
    """`own_s`: when the device has a first token of its own; `tokens`: of the whole answer."""
    env = simpy.Environment()
    answer = Answer(SimDisplay(env))
    answer.began(came_s[0], None)
    answer.paced(pace_s)
    for time_s in came_s[1:]:
        answer.came(time_s, None)
    answer.ended(max(came_s), cut=len(came_s) < from_cloud)
    answer.decoded(own_s, own_s + tpot_s * (tokens - 1), tokens, from_cloud)
    found: np.ndarray = env.run(until=answer.shown())
    assert len(found) == len(answer) == tokens
    return found


def test_slots_and_then_the_devices_own() -> None:
    # Slots at 1, 3 and 5; the second token comes 0.5 late, the third keeps its slot. The device has its own at 2.5 + n.
    assert shown([1.0, 3.5, 4.0], 2.0, 2.5, 1.0, 5, 3).tolist() == [1.0, 3.5, 5.0, 5.5, 6.5]


def test_a_token_that_comes_behind_the_devices_own_is_not_shown() -> None:
    # The second is due at 3 and comes at 6, the device has its own at 4, and those behind it a second apart.
    assert shown([1.0, 6.0, 6.5], 2.0, 3.0, 1.0, 5, 3).tolist() == [1.0, 4.0, 5.0, 6.0, 7.0]


def test_one_that_is_ready_early_waits_for_the_slot_and_no_longer() -> None:
    # The second is due at 3. The device has its own at 1.5.
    assert shown([1.0, 2.9, 6.0], 2.0, 1.0, 0.5, 4, 3).tolist() == pytest.approx([1.0, 3.0, 5.0, 5.5])
    assert shown([1.0, 3.1, 6.0], 2.0, 1.0, 0.5, 4, 3).tolist() == pytest.approx([1.0, 3.0, 3.5, 4.0])


def test_where_it_is_clear_that_none_will_come_no_slot_is_waited_for() -> None:
    controller = SpeedController(1.0, 2.0)
    # Ready at 1.5; the end is known at 1.2, or at 2.
    assert controller.own_from([1.0], 3, 1.0, 0.5, 1.2) == (1, 0.0)
    assert controller.own_from([1.0], 3, 1.0, 0.5, 2.0) == (1, 0.5)


def test_a_slower_pace_from_a_place_on() -> None:
    # Slots at 1, 3, 5 and, from the third place on, 4 apart: 9, 13.
    slower = SpeedController(1.0, 2.0).slower(3, 4.0)
    assert [slower.slot_s(n) for n in range(5)] == [1.0, 3.0, 5.0, 9.0, 13.0]
    assert [slower.due_behind(now_s) for now_s in (0.0, 1.0, 2.9, 3.0, 3.1)] == [1, 1, 1, 2, 2]


def test_tokens_that_are_there_are_put_off_as_well() -> None:
    env = simpy.Environment()
    answer = Answer(SimDisplay(env))
    answer.began(1.0, None)
    answer.paced(2.0)
    for _ in range(3):
        answer.came(1.5, None)
    assert answer.due_behind(3.5) == 2
    answer.put_off(2, 4.0)
    answer.came(20.0, None)
    assert env.run(until=answer.shown()).tolist() == [1.0, 3.0, 7.0, 11.0, 20.0]
    # Nor does a machine that decodes through them wait less.
    assert answer.following.slot_s is not None
    assert answer.following.slot_s(4) == 15.0


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=20),
    st.floats(0, 2),
    st.booleans(),
    st.integers(0, 20),
)
def test_tokens_that_are_told_together_are_shown_as_one_by_one(
    waits_s: list[float], pace_s: float, slower: bool, before: int
) -> None:
    came_s: list[float] = np.cumsum(waits_s).tolist()
    found = []
    for together in (False, True):
        env = simpy.Environment()
        answer = Answer(SimDisplay(env))
        answer.began(came_s[0], None)
        for n in range(1, len(came_s)):
            if n == before:
                answer.paced(pace_s)
                if slower:
                    answer.put_off(n + 1, pace_s + 1)
            if not together or n < before:
                answer.came(came_s[n], None)
        if together and before < len(came_s):
            answer.came_all(came_s[max(1, before) :], [None] * len(came_s[max(1, before) :]))
        answer.ended(came_s[-1], cut=False)
        found.append((env.run(until=answer.shown()).tolist(), answer.came_s, len(answer.following.pieces)))
    assert found[0] == found[1]


def test_own_tokens_begin_behind_the_clouds_where_all_of_these_are_there_first() -> None:
    # At 5 s the device has its own first one: the three before are shown, and its own fourth 3 s on.
    assert SpeedController(1.0, 2.0).own_from([1.0, 2.0, 3.0], 3, 5.0, 1.0) == (3, 0.0)
    # The third comes at 6.5 s, due at 5; the device would have its own at 5 + 2: it is shown, and delays nothing.
    assert SpeedController(1.0, 2.0).own_from([1.0, 2.0, 6.5], 3, 5.0, 1.0) == (3, 0.0)


def shown_of(smoothing: Smoothing, late_s: np.ndarray) -> np.ndarray:
    of = replace(PHONE, smoothing=smoothing)
    best = best_setting(of)
    came_s = of.cloud_ttft_s + of.cloud_tpot_s * np.arange(best.tokens)
    came_s[1:] += late_s[: best.tokens - 1]
    pace_s, own_s = smoothed_tpot_s(of, best.ratio, best.tokens), of.device_ttft_s(best.ratio)
    return shown(came_s.tolist(), pace_s, own_s, of.device_tpot_s, best.tokens + 20, best.tokens)


def test_the_papers_pace_stalls_once() -> None:
    gaps = np.diff(shown_of("paper", np.zeros(100)))
    # TTFT_d - prefill(rl), which Eq. 4 leaves out, and the device's own pace.
    assert gaps.max() == pytest.approx(0.95 + 0.05 + 0.04)
    assert gaps.argmax() == 35


@given(late_s=st.lists(st.floats(0, 10.0), min_size=60, max_size=60))
def test_causal_pace_never_waits_longer_than_promised_and_the_links_jitter(late_s: list[float]) -> None:
    best = best_setting(PHONE)
    promised_s = smoothed_tpot_s(PHONE, best.ratio, best.tokens)
    gaps = np.diff(shown_of("causal", np.array(late_s)))
    assert gaps.max() <= promised_s + max(late_s) + 1e-9
    assert gaps.min() >= 0


@given(
    sent_s=st.lists(st.floats(0, 5), min_size=1, max_size=12),
    missing=st.integers(0, 3),
    pace_s=st.floats(0, 2),
    own_s=st.floats(0, 10),
    tpot_s=st.floats(0.01, 2),
    more=st.integers(0, 4),
)
def test_nobody_waits_beyond_the_slot_when_the_device_has_a_token(
    sent_s: list[float], missing: int, pace_s: float, own_s: float, tpot_s: float, more: int
) -> None:
    came_s = np.cumsum(sent_s).tolist()
    from_cloud, tokens = len(came_s) + missing, max(2, len(came_s) + missing + more)
    found = shown(came_s, pace_s, own_s, tpot_s, tokens, from_cloud)
    assert (np.diff(found) >= -1e-9).all()
    ready_s = own_s
    for n in range(1, tokens):
        # The device has a token a TPOT behind its own one before, or behind the one that is shown in its place.
        ready_s = max(ready_s, found[n - 1]) + tpot_s
        assert found[n] <= max(ready_s, came_s[0] + pace_s * n) + 1e-6
