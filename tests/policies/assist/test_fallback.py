"""Who answers where problem P has no solution, by hand and whatever the device's speed."""

from dataclasses import replace

import pytest
from assisted_phone import PHONE
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.assist.assistance import Assistance, MaskComes
from kvferry.policies.assist.fallback import Alone, Fallback, fallback
from kvferry.policies.assist.optimiser import NoSetting, Setting, setting_of

# The cloud's first token without a mask: 0.8 s of prefill and 0.05 of round trip.
CLOUD_TTFT_S = 0.85


def found(of: Assistance, ttft_s: float = 12.0, tpot_s: float = 0.04, answer: int = 200, **said: float) -> Fallback:
    return fallback(of, NoSetting("why"), Alone(ttft_s=ttft_s, tpot_s=tpot_s), answer, **said)  # type: ignore[arg-type]


def test_the_device_where_its_own_token_comes_first() -> None:
    assert found(PHONE, ttft_s=CLOUD_TTFT_S - 0.01).by == "device"
    assert found(PHONE, ttft_s=CLOUD_TTFT_S + 0.01).by == "both"


def test_the_cloud_where_no_pace_of_the_devices_is_tolerated() -> None:
    assert found(replace(PHONE, tolerable_tpot_s=0.04)).by == "cloud"
    # 3.05 s of a quarter of the prompt, over 1 ms each.
    assert found(replace(PHONE, tolerable_tpot_s=0.041)).by == "cloud"


def test_more_tokens_than_the_cloud_has_time_for() -> None:
    # 12 s x 0.25 and 50 ms of unpacking, over 20 ms each.
    assert found(replace(PHONE, tolerable_tpot_s=0.06)).setting == Setting(0.25, 1 + 153)


def test_the_whole_prompt_where_a_part_of_it_is_no_faster() -> None:
    # The device takes 1 s for the whole of it: 150 ms over 60 each.
    quick = replace(PHONE, device_s_per_token=0.125e-3)
    assert quick.ratio_bounds[1] < quick.least_ratio
    assert found(quick, ttft_s=1.0).setting == Setting(1.0, 1 + 3)
    # What a scenario says stays.
    assert found(quick, ttft_s=1.0, tokens=1).setting == Setting(1.0, 1)
    assert found(quick, ttft_s=1.0, ratio=0.5).setting.ratio == 0.5  # type: ignore[union-attr]


def test_the_note_says_why_and_what_instead() -> None:
    assert str(found(replace(PHONE, tolerable_tpot_s=0.04))) == "why; the cloud answers by itself"
    assert str(found(replace(PHONE, tolerable_tpot_s=0.06))) == "why; instead 154 tokens and a ratio of 0.25"


def test_a_cloud_that_is_too_slow_itself_says_so() -> None:
    assert found(replace(PHONE, tolerable_tpot_s=0.03)).slow_s is None
    assert str(found(replace(PHONE, tolerable_tpot_s=0.029))) == (
        "why; the cloud answers by itself, whose 30 ms per token are more than tau, too"
    )


def first_token_s(of: Assistance, start_s: float) -> float:
    """As estimated, with the help that a device gets."""
    alone = Alone(ttft_s=start_s + of.device_s_per_token * of.prompt_tokens, tpot_s=of.device_tpot_s)
    help_ = setting_of(of, "auto", "auto")
    if isinstance(help_, NoSetting):
        instead = fallback(of, help_, alone, 200)
        if instead.by == "device":
            return alone.ttft_s
        help_ = instead.setting or Setting(1.0, 200)
    return of.bare_ttft_s if help_.ratio == 1 else of.cloud_ttft_s


@given(
    prompt=st.integers(10, 30_000),
    round_trip_s=st.floats(0.001, 2),
    compress=st.floats(0, 50e-6),
    tolerable_s=st.floats(0.01, 0.3),
    start_s=st.floats(0, 2),
    device=st.tuples(st.floats(0.02e-3, 5e-3), st.floats(0.005, 0.1)),
    faster=st.floats(1, 8),
    mask=st.sampled_from(["with-token", "behind-token"]),
)
def test_a_faster_device_has_its_first_token_no_later_but_for_the_mask(
    prompt: int,
    round_trip_s: float,
    compress: float,
    tolerable_s: float,
    start_s: float,
    device: tuple[float, float],
    faster: float,
    mask: MaskComes,
) -> None:
    """The mask that comes with it; one behind it makes none later."""
    of = replace(
        PHONE,
        mask=mask,
        prompt_tokens=prompt,
        round_trip_s=round_trip_s,
        compress_s=compress * prompt,
        tolerable_tpot_s=tolerable_s,
        device_s_per_token=device[0],
        device_tpot_s=device[1],
    )
    quick = replace(of, device_s_per_token=device[0] / faster, device_tpot_s=device[1] / faster)
    mask_s = of.compress_s if mask == "with-token" else 0.0
    assert first_token_s(quick, start_s) <= first_token_s(of, start_s) + mask_s + 1e-9


@pytest.mark.parametrize("compress_s", [0.0, 0.1])
def test_from_the_cloud_alone_to_help_the_mask_is_all_that_is_later(compress_s: float) -> None:
    slow = replace(PHONE, tolerable_tpot_s=0.045, compress_s=compress_s)
    quick = replace(slow, device_s_per_token=slow.device_s_per_token / 2, device_tpot_s=slow.device_tpot_s / 2)
    assert first_token_s(quick, 0.0) == pytest.approx(first_token_s(slow, 0.0) + compress_s)
    slow, quick = (replace(of, mask="behind-token") for of in (slow, quick))
    assert first_token_s(quick, 0.0) == pytest.approx(first_token_s(slow, 0.0))
