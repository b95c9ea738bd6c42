"""Figures of conversations, from turns that one can add up."""

from dataclasses import replace

import pytest
from tiny import TURNS as TINY
from tiny import tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.quality import is_unknown, lower_quality
from kvferry.analysis.session_picture import session_picture
from kvferry.analysis.sessions import mostly_by, mostly_from, session_metrics, turns_columns
from kvferry.pipelines.record import Run, Sessions, TurnAttention, TurnRecord
from kvferry.policies.decode.attention_mass import AttentionMass


def turn(number: int, waits_s: tuple[float, float, float], **parts: float) -> TurnRecord:
    """A turn of a thousand tokens; `waits_s`: for the device, for its context, for its question."""
    arrival_s = 10.0 * number
    began_s = arrival_s + waits_s[0]
    got_s = began_s + waits_s[1]
    first_s = got_s + waits_s[2]
    return TurnRecord(
        request=number, conversation=0, number=number, prompt=1000, output=2, arrival_s=arrival_s, began_s=began_s,
        got_s=got_s, first_token_s=first_s, end_s=first_s + 1.0, **parts,
    )  # fmt: skip


# The first is new. The second is on flash, and half of that comes from the cloud; the third is in memory but for 100.
TURNS = (
    turn(0, (0.0, 0.0, 4.0), computed=1000),
    turn(1, (1.0, 2.0, 1.0), from_flash=800, computed=200, read=300.0, streamed=400.0),
    turn(2, (0.0, 0.0, 1.0), from_memory=900, computed=100),
)
RUN = Run(outcome="done", duration_s=30.0, sessions=Sessions(turns=TURNS))


def test_where_prompts_came_from_and_by_which_path() -> None:
    found = session_metrics(RUN, None)
    assert [mostly_from(one) for one in TURNS] == ["computed", "flash", "memory"]
    assert [mostly_by(one) for one in TURNS] == ["computing", "streaming", "computing"]
    shares = {key: 3 * found[key] for key in found if key.endswith("_share")}
    assert shares == pytest.approx(
        {
            "found_in_memory_share": 0.9,
            "found_on_flash_share": 0.8,
            "found_in_cloud_share": 0.0,
            "computed_share": 1.3,
            "by_reading_share": 0.3,
            "by_streaming_share": 0.4,
            # 1,000 of the first turn, 300 of the second, 100 of the third.
            "by_computing_share": 1.4,
        }
    )
    assert {key: value for key, value in found.items() if key.startswith("ttft_")} == pytest.approx(
        {
            "ttft_from_memory_s": 1.0,
            "ttft_from_flash_s": 4.0,
            "ttft_computed_s": 4.0,
            "ttft_by_streaming_s": 4.0,
            "ttft_by_computing_s": 2.5,
        }
    )
    assert [3 * found[key] for key in ("queue_s", "context_s", "question_s")] == pytest.approx([1.0, 2.0, 6.0])


def test_what_could_be_saved_of_all_waits() -> None:
    bounded = tuple(replace(one, bound_s=bound_s) for one, bound_s in zip(TURNS, (4.0, 0.25, 0.25), strict=True))
    found = session_metrics(replace(RUN, sessions=Sessions(turns=bounded)), None)
    assert (found["waits_s"], found["waits_bound_s"]) == pytest.approx((9.0, 4.5))
    assert found["waits_savable_share"] == pytest.approx(0.5)
    assert turns_columns(bounded)["bound_s"].to_pylist() == [4.0, 0.25, 0.25]
    unknown = session_metrics(RUN, None)
    assert unknown["waits_s"] == pytest.approx(9.0) and "waits_bound_s" not in unknown


def test_blocks_of_an_earlier_run_that_were_dropped_are_told() -> None:
    told = [session_metrics(replace(RUN, measured={"kept_blocks_dropped": n}), None) for n in (0, 3)]
    assert [found.get("kept_blocks_dropped") for found in told] == [None, 3.0]


def attending(tokens: float, of: float, mass: AttentionMass | None) -> TurnAttention:
    return TurnAttention(tokens=tokens, of=of, mass=mass)


def test_attention_is_a_mean_over_the_tokens_of_all_answers() -> None:
    # Ten tokens behind a first one, thirty, and an answer of a single token.
    turns = (
        replace(TURNS[0], output=11, attention=attending(400.0, 1000.0, AttentionMass(0.5, 0.02))),
        replace(TURNS[1], output=31, attention=attending(400.0, 3000.0, AttentionMass(0.9, 0.04))),
        replace(TURNS[2], output=1),
    )
    found = session_metrics(replace(RUN, sessions=Sessions(turns=turns)), None)
    assert (found["attended_tokens"], found["attended_share"]) == (400.0, pytest.approx(400 / 2500))
    assert found["attention_mass"] == pytest.approx(0.8)
    assert found["attention_mass_spread"] == pytest.approx(0.035)
    assert lower_quality({"mine": found}) == {"mine": "400 of 2,500 tokens"}
    unknown = (turns[0], replace(turns[1], attention=attending(400.0, 3000.0, None)))
    found = session_metrics(replace(RUN, sessions=Sessions(turns=unknown)), None)
    assert is_unknown("attention_mass", found)
    whole = (replace(TURNS[0], attention=attending(1001.0, 1001.0, AttentionMass(1.0, 0.0))),)
    found = session_metrics(replace(RUN, sessions=Sessions(turns=whole)), None)
    assert (found["attended_share"], found["attention_mass"]) == (1.0, 1.0)
    assert "attention_mass_spread" not in found and not lower_quality({"mine": found})


def test_the_picture_shows_both_and_what_turns_waited_for() -> None:
    places, paths, waits, _ = session_picture(RUN).axes
    said = [[text.get_text() for text in axis.get_legend().get_texts()] for axis in (places, paths, waits)]
    assert said[0] == ["in memory (30%)", "on flash (27%)", "nowhere: computed (43%)"]
    assert said[1] == ["read", "streamed (TTFT 4 s)", "computed (TTFT 2.5 s)"]
    assert said[2] == ["its context (0.67 s)", "reading what is new (2 s)", "median of all (4 s)"]


def test_a_row_per_turn() -> None:
    columns = turns_columns(TURNS)
    assert columns["mostly_by"].to_pylist() == ["computing", "streaming", "computing"]
    assert columns["ttft_s"].to_pylist() == pytest.approx([4.0, 4.0, 1.0])


def test_what_a_day_takes_of_the_battery() -> None:
    """360 J in half a minute, of a battery of 1 Wh: a day of that is 288 times all that it holds."""
    scenario = tiny(TINY, "device.battery={capacity_j: 1 Wh}")
    found = metrics_for(scenario, replace(RUN, energy_j={"base": 360.0}))
    assert found["day_energy_j"] == pytest.approx(360.0 * 2880)
    assert found["battery_percent_per_day"] == pytest.approx(28800.0)
    assert "battery_percent_per_day" not in metrics_for(tiny(TINY), replace(RUN, energy_j={"base": 360.0}))
