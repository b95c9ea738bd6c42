"""Problem P: by hand, and its closed form against the program."""

from dataclasses import replace

import pulp
import pytest
from assisted_phone import PHONE, smoothed_tpot_s
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.assist.assistance import Assistance
from kvferry.policies.assist.optimiser import NoSetting, Setting, best_setting, setting_of


def test_what_help_comes_to_by_hand() -> None:
    assert PHONE.cloud_ttft_s == pytest.approx(0.95)
    assert PHONE.prefill_s(0.25) == pytest.approx(3.0)
    assert PHONE.device_ttft_s(0.25) == pytest.approx(0.95 + 0.05 + 3.0)
    # 1 - (0.8 + 0.2) / 12
    assert PHONE.ratio_bounds == pytest.approx((0.25, 11 / 12))


def test_as_few_tokens_as_the_tolerated_pace_needs() -> None:
    # 3.05 s, 60 ms above the device's own pace with each: 50.8, and the cloud has time for 101.
    assert PHONE.decoded_bounds(0.25) == pytest.approx((3.05 / 0.06, 3.05 / 0.03))
    assert best_setting(PHONE) == Setting(0.25, 52)
    assert smoothed_tpot_s(PHONE, 0.25, 52) == pytest.approx(0.04 + 3.05 / 51)


def test_as_few_as_a_given_ratio_needs() -> None:
    assert setting_of(PHONE, "auto", 0.25) == Setting(0.25, 52)


def test_as_the_paper_amortises() -> None:
    # Eq. 4 takes the cloud's 0.95 s off the prefill: 2.05 s, 34.2 tokens.
    paper = replace(PHONE, smoothing="paper")
    assert best_setting(paper) == Setting(0.25, 36)
    assert smoothed_tpot_s(paper, 0.25, 36) == pytest.approx(0.04 + 2.05 / 35)


def test_a_mask_behind_the_first_token_waits_for_nobody_but_the_device() -> None:
    # The first token is there 0.1 s sooner, and the device's own no later: 3.15 s, over 60 ms each.
    behind = replace(PHONE, mask="behind-token")
    assert behind.cloud_ttft_s == pytest.approx(0.85) == PHONE.bare_ttft_s
    assert behind.device_ttft_s(0.25) == pytest.approx(PHONE.device_ttft_s(0.25))
    assert behind.ratio_bounds == PHONE.ratio_bounds
    assert behind.decoded_bounds(0.25) == pytest.approx((3.15 / 0.06, 3.15 / 0.03))
    assert best_setting(behind) == Setting(0.25, 54)
    assert smoothed_tpot_s(behind, 0.25, 54) == pytest.approx(0.04 + 3.15 / 53)
    # Of 40 tokens one needs half; refining and unpacking take 12 ms of its 30, and 18 are left to prefill.
    short = replace(behind, prompt_tokens=40, compress_s=6e-3, decompress_s=6e-3, round_trip_s=0.0)
    assert best_setting(short) == Setting(pytest.approx(0.3), 2)


def test_a_short_prompt_is_kept_longer_where_eq_6_has_no_whole_number() -> None:
    # 10 tokens take the device 15 ms: no token of 30 ms is decoded meanwhile at r = 0.25 (3.75 ms), nor at any r.
    short = replace(PHONE, prompt_tokens=10, compress_s=0.0, decompress_s=0.0, round_trip_s=0.0)
    with pytest.raises(NoSetting, match=r"upper bound\): the device is done before a token of 30 ms"):
        best_setting(short)
    # 40 tokens take 60 ms: one token needs half of it.
    assert best_setting(replace(short, prompt_tokens=40)) == Setting(0.5, 2)
    # Unpacking the mask counts, too: its 6 ms leave 24 of them to prefill.
    assert best_setting(replace(short, prompt_tokens=40, decompress_s=6e-3)) == Setting(pytest.approx(0.4), 2)


def test_time_for_one_token_is_said_where_more_are_needed() -> None:
    # 56 ms of prefill at the largest r are time for one token of 30 ms; 15 ms at 1 ms above the device's pace are 15.
    bare = replace(PHONE, prompt_tokens=40, compress_s=0.0, decompress_s=0.0, round_trip_s=0.0)
    with pytest.raises(NoSetting, match="15 decoded tokens keep the tolerated pace, the cloud has time for 1$"):
        best_setting(replace(bare, tolerable_tpot_s=bare.device_tpot_s + 1e-3))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device_s_per_token": 0.11e-3}, r"\(Eq. 5\).*the device alone has a token of its own sooner"),
        ({"most_device_tokens": 1000}, r"\(Eq. 5\).*the device takes 1,000 of 8,000 tokens"),
        ({"tolerable_tpot_s": 0.03}, r"lower bound\): the device's own pace of 40 ms"),
        ({"tolerable_tpot_s": 0.04}, r"lower bound\): the device's own pace of 40 ms"),
        ({"cloud_tpot_s": 0.1}, r"\(Eq. 6\): 51 decoded tokens keep the tolerated pace, the cloud has time for 110"),
    ],
)
def test_the_bound_that_fails_is_named(change: dict[str, float], why: str) -> None:
    changed = replace(PHONE, **change)  # type: ignore[arg-type]
    if "cloud_tpot_s" in change:
        # A longer prompt gives a slow cloud time; a tolerated pace of 45 ms takes more of it than there is.
        changed = replace(changed, tolerable_tpot_s=0.045)
        why = r"\(Eq. 6\): 610 decoded tokens keep the tolerated pace, the cloud has time for 110"
    with pytest.raises(NoSetting, match=why):
        best_setting(changed)
    assert solved_setting(changed) is None


def solved_setting(of: Assistance) -> Setting | None:
    """Problem P as a mixed-integer program, solved by HiGHS: the least r, then the smallest L at that r; None where it
    has no solution."""
    least, most = of.ratio_bounds
    if least > most:
        return None
    program, ratio, decoded = _program(of, least, most)
    program += ratio
    # Rows are linear where tokens are shown no faster than the device's own pace.
    if of.tolerable_tpot_s < of.device_tpot_s or not _solved(program):
        return None
    best: float = ratio.value()
    program, ratio, decoded = _program(of, least, min(most, best + 1e-9))
    program += decoded
    if not _solved(program):
        return None
    return Setting(best, round(decoded.value()) + 1)


def _program(of: Assistance, least: float, most: float) -> tuple[pulp.LpProblem, pulp.LpVariable, pulp.LpVariable]:
    """Eq. 5 as bounds of r, and Eq. 6, linear in r, as two rows."""
    program = pulp.LpProblem("assistance", pulp.LpMinimize)
    ratio = program.add_variable("ratio", least, most)
    decoded = program.add_variable("decoded", 1, 100_000, cat="Integer")
    whole_s, at_zero_s = of.prefill_s(1.0), of.amortised_s(0.0)
    program += whole_s * ratio + at_zero_s <= (of.tolerable_tpot_s - of.device_tpot_s) * decoded
    program += of.cloud_tpot_s * decoded <= of.unpacked_s + whole_s * ratio
    return program, ratio, decoded


def _solved(program: pulp.LpProblem) -> bool:
    program.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0))
    return bool(program.status == pulp.LpStatusOptimal)


seconds = st.floats(1e-3, 1.0)


@given(
    tokens=st.integers(1, 40_000),
    cloud=st.floats(1e-5, 1e-3),
    device=st.floats(1e-4, 5e-3),
    extra=seconds,
    tpots=st.tuples(seconds, st.floats(5e-3, 0.2), st.floats(5e-3, 0.4)),
    ratio=st.floats(0.05, 1.0),
    smoothing=st.sampled_from(["paper", "causal"]),
    mask=st.sampled_from(["with-token", "behind-token"]),
)
def test_the_closed_form_is_the_programs(tokens, cloud, device, extra, tpots, ratio, smoothing, mask) -> None:  # type: ignore[no-untyped-def]
    of = Assistance(
        prompt_tokens=tokens,
        cloud_s_per_token=cloud,
        device_s_per_token=device,
        compress_s=extra / 2,
        decompress_s=extra / 3,
        round_trip_s=extra / 4,
        cloud_tpot_s=tpots[0],
        device_tpot_s=tpots[1],
        tolerable_tpot_s=tpots[2],
        least_ratio=ratio,
        smoothing=smoothing,
        mask=mask,
    )
    try:
        best = best_setting(of)
    except NoSetting:
        assert solved_setting(of) is None
        return
    least, most = of.decoded_bounds(best.ratio)
    assert least - 1e-6 <= best.tokens - 1 <= most + 1e-6
    assert smoothed_tpot_s(of, best.ratio, best.tokens) <= of.tolerable_tpot_s + 1e-9
    solved = solved_setting(of)
    assert solved is not None
    assert solved.ratio == pytest.approx(best.ratio, abs=1e-6 / of.prefill_s(1.0) + 1e-6)
    # A solver keeps rows up to 1e-6 s, which may be a token's difference where one just fits.
    if all(abs(bound - round(bound)) > 1e-3 for bound in (least, most)):
        assert solved.tokens == best.tokens
