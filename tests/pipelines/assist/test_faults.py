"""A cloud that fails a device: the device finishes the answer, and says what happened. Times as in test_by_hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import BY_HAND, columns, only, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.analysis.assisted import assisted_metrics
from kvferry.pipelines.assist import service
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario

HELP = "policies.assist={tokens: 5, ratio: 0.25, patience: 500 ms}"
PACE_S, TPOT_S = 0.020 + 0.260 / 4, 0.020


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def failed(what: str, tokens: int = 1, output: int = 10, **more: Any) -> Run:
    return ran(HELP, workload={"output": output, "fault": {"what": what, "tokens": tokens}}, **more)


def test_a_cloud_that_never_answers() -> None:
    run = failed("unreachable")
    # Prepared in 20 ms; the whole prompt is prefilled in 1 s.
    assert run.requests[0].token_times_s == pytest.approx([1.020 + TPOT_S * n for n in range(10)])
    assert only(run)["lost"] == 1
    assert "1 of 1 requests without all of the cloud's help: the cloud has ended the conversation" in run.notes
    assert run.assisted is not None
    figures = assisted_metrics(run.assisted, None)
    assert figures["assisted_share"] == 0
    assert "assisted_tokens" not in figures


def test_a_cloud_that_dies_behind_its_third_token() -> None:
    run = failed("dies", 3)
    got, first_s = only(run), run.requests[0].first_token_s
    own_s = first_s + 0.260
    # Its tokens are shown at the pace that five would have had; from the fourth on they are the device's own.
    shown_s = [first_s + PACE_S * n for n in range(3)] + [own_s + TPOT_S * n for n in range(3, 10)]
    assert run.requests[0].token_times_s == pytest.approx(shown_s)
    assert (got["came"], got["tokens"]) == (3, 5)
    assert run.assisted is not None
    figures = assisted_metrics(run.assisted, None)
    assert (figures["assisted_tokens"], figures["assisted_tokens_max"]) == (3, 3)
    assert (figures["planned_tokens"], figures["planned_tokens_max"]) == (5, 5)
    assert "the cloud has ended the conversation, behind token 3 of 5" in run.notes[0]


def test_a_stream_that_stalls_is_not_waited_for_once_the_device_has_its_own_token() -> None:
    run = failed("stalls", 1)
    first_s = run.requests[0].first_token_s
    # Unpacked in 10 ms, prefilled in 250: the second token is the device's own.
    shown_s = [first_s] + [first_s + 0.260 + TPOT_S * n for n in range(1, 10)]
    assert run.requests[0].token_times_s == pytest.approx(shown_s)
    assert "token 2 of 5 was not there when the device had its own, with which it went on" in run.notes[0]


def test_a_stall_of_a_cloud_that_was_to_say_it_all() -> None:
    run = failed("stalls", 2, output=4)
    first_s = run.requests[0].first_token_s
    shown_s = [first_s, first_s + PACE_S, *(first_s + 0.260 + TPOT_S * n for n in (2, 3))]
    assert run.requests[0].token_times_s == pytest.approx(shown_s)


def test_an_outage_holds_up_nobody_who_has_a_token_of_its_own() -> None:
    # Tokens are sent from 159 ms on; from 180 ms on nothing crosses for three seconds.
    outage = {"outages": [{"start": "180 ms", "duration": "3 s"}]}
    run = ran(HELP, link=outage)
    first_s, got = run.requests[0].first_token_s, only(run)
    came = int(got["came"])
    assert 1 <= came < 5
    shown_s = [first_s + PACE_S * n for n in range(came)] + [first_s + 0.260 + TPOT_S * n for n in range(came, 10)]
    assert run.requests[0].token_times_s == pytest.approx(shown_s)


def test_a_pace_that_nobody_would_tolerate_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    good = service.first_answer
    slow = {"tpot_s": 5.0}
    monkeypatch.setattr(service, "first_answer", lambda *args, **more: good(*args, **more) | slow)
    run = ran(HELP)
    # Users tolerate 100 ms; Eq. 4 alone says 85.
    assert only(run)["pace_s"] == pytest.approx(0.100)
    assert only(run)["largest_gap_s"] == pytest.approx(0.100)


def test_an_answer_that_comes_behind_patience_is_shown_where_it_comes_first() -> None:
    # Half a round trip of 300 ms each way: the first token is there after some 0.46 s, and patience ends at 0.12 s.
    help_ = "policies.assist={tokens: 5, ratio: 0.25, patience: 100 ms}"
    run = ran(help_, link={"rtt": "300 ms"})
    got = only(run)
    assert got["first_s"] == pytest.approx(0.020 + 0.004 + 0.150 + 0.125 + 0.150 + got["response_bytes"] * 1e-6)
    # From 120 ms on it prefills the whole prompt.
    assert got["own_first_s"] == pytest.approx(0.120 + 1.000)
    assert got["pace_s"] == pytest.approx(TPOT_S + (1.120 - got["first_s"]) / 4)
    assert got["largest_gap_s"] == pytest.approx(got["pace_s"])
    assert "nothing has come from cloud for 0.1 s" in run.notes[0]


def test_an_answer_that_comes_behind_the_devices_own_token_is_not_shown() -> None:
    help_ = "policies.assist={tokens: 5, ratio: 0.25, patience: 100 ms}"
    run = ran(help_, link={"rtt": "4 s"})
    assert run.requests[0].token_times_s == pytest.approx([1.120 + TPOT_S * n for n in range(10)])
    assert only(run)["came"] == 0


def test_a_scenario_that_says_nothing_of_patience_does_not_wait_for_ever() -> None:
    fault = {"fault": {"what": "stalls", "tokens": 1}}
    run = ran("policies.assist={tokens: 5, ratio: 0.25}", workload=fault)
    first_s = run.requests[0].first_token_s
    assert run.requests[0].token_times_s[1] == pytest.approx(first_s + 0.260 + TPOT_S)


def test_a_device_gets_ready_once_a_token_of_a_cloud_alone_is_late() -> None:
    run = ran(system="cloud-only", workload={"fault": {"what": "stalls", "tokens": 2}})
    # A second behind the promised 10 ms, which count from when the second token was there; then the prefill of the
    # whole prompt, and two of its own tokens to get behind the cloud's.
    assert only(run)["largest_gap_s"] == pytest.approx(1.010 + 1.000 + 2 * TPOT_S)
    assert "token 3 of 10 was not there when the device had its own" in run.notes[0]


def test_a_clouds_tokens_that_come_again_before_the_devices_own_are_shown() -> None:
    # The fifth is there at 189 ms; the others, 9 ms behind their turn on the link, come when it is back.
    run = ran(system="cloud-only", link={"outages": [{"start": "190 ms", "duration": "1.5 s"}]})
    got = only(run)
    assert run.requests[0].token_times_s[5:] == pytest.approx([1.690 + 0.0001 * n for n in range(1, 6)])
    # It has begun by itself at the first late one, and had nothing to say.
    assert got["own_first_s"] == pytest.approx(run.requests[0].token_times_s[4] + 1.010 + 1.000)
    assert (got["came"], got["lost"], run.notes) == (10, 0, ())


@pytest.mark.parametrize(
    ("link", "fault"),
    [({}, {"what": "stalls", "tokens": 5}), ({"outages": [{"start": "1.2 s", "duration": "30 s"}]}, None)],
)
def test_a_device_that_drafts_goes_on_alone_at_the_first_late_verdict(link: Any, fault: Any) -> None:
    run = ran(system="speculative-edge", link=link, workload={"output": 20, "fault": fault})
    got, times_s = only(run), list(run.requests[0].token_times_s)
    # Five drafts in 100 ms, a second behind the round trip and the promised 10 ms, and one more of its own; with the
    # bytes of a round, at the mean rate of the link with its outage.
    assert got["largest_gap_s"] == pytest.approx(5 * TPOT_S + 0.020 + 0.010 + 1.000 + TPOT_S, abs=0.01)
    # It reads nothing again: the rest follows at its own pace, three tokens of each round standing before.
    stood = 1 + 3 * (2 if fault else 1)
    assert times_s[stood:] == pytest.approx([times_s[stood] + TPOT_S * n for n in range(20 - stood)])
    assert got["lost"] == 1
    assert "nothing has come from cloud for 1.03" in run.notes[0]


def test_a_cloud_that_dies_behind_its_verdicts() -> None:
    run = ran(system="speculative-edge", workload={"output": 20, "fault": {"what": "dies", "tokens": 5}})
    assert "the cloud has ended the conversation" in run.notes[0]
    times_s = run.requests[0].token_times_s
    assert times_s[7:] == pytest.approx([times_s[7] + TPOT_S * n for n in range(13)])


def test_drafts_need_one_tokenizer_on_both_sides() -> None:
    patience = "policies.assist={patience: 500 ms}"
    run = ran(patience, workload={"fault": {"what": "other-tokenizer"}}, system="speculative-edge")
    assert "the cloud's tokenizer is another (another): it cannot look at drafts" in run.notes[0]
    assert len(run.requests[0].token_times_s) == 10
    # By itself: the whole prompt, then a token at a time.
    assert list(run.requests[0].token_times_s) == sorted(run.requests[0].token_times_s)
    assert only(run)["lost"] == 1


def test_a_stream_that_stalls_later() -> None:
    run = failed("stalls", 3)
    # Parts count: the second and the third token were sent 10 and 20 ms behind the first.
    (one,), got = run.requests, only(run)
    assert got["came"] == 3
    assert one.token_times_s[:3] == pytest.approx([one.first_token_s + PACE_S * n for n in range(3)])
    assert one.token_times_s[3] == pytest.approx(one.first_token_s + 0.260 + 3 * TPOT_S)


@pytest.mark.parametrize(
    ("what", "says"), [("damaged-mask", "the mask is damaged"), ("other-mask", "the mask belongs to another prompt")]
)
def test_a_mask_that_is_of_no_use(what: str, says: str) -> None:
    run = failed(what)
    first_s, got = run.requests[0].first_token_s, only(run)
    # The whole prompt, at once.
    assert got["own_first_s"] == pytest.approx(first_s + 1.000)
    assert got["pace_s"] == pytest.approx(TPOT_S + 1.000 / 4)
    assert says in run.notes[0]
    assert "the whole prompt is prefilled" in run.notes[0]


@pytest.mark.parametrize("system", ["cloud-only", "speculative-edge", "tokens-only", "refinement-only"])
@pytest.mark.parametrize(("what", "tokens"), [("unreachable", 1), ("dies", 1), ("stalls", 2)])
def test_every_system_finishes(system: str, what: str, tokens: int) -> None:
    said = "policies.assist={patience: 500 ms}"
    run = ran(said, system=system, workload={"fault": {"what": what, "tokens": tokens}})
    (one,) = run.requests
    assert len(one.token_times_s) == 10
    assert list(one.token_times_s) == sorted(one.token_times_s)


def test_a_device_whose_cloud_has_died_answers_further_requests() -> None:
    run = ran(HELP, workload={"fault": {"what": "dies", "tokens": 2}, "requests": 3})
    assert len(run.requests) == 3
    assert all(len(one.token_times_s) == 10 for one in run.requests)
    # The first has lost it on the way, the others find it gone.
    assert sorted(columns(run)["came"]) == [0, 0, 2]


GONE = {"rate": None, "trace": "wifi-850", "rtt": "20 ms", "on_end": "end", "offset": "1e7 s"}


@pytest.mark.parametrize(("system", "first_s"), [("pd-device", 1.0), ("refinement-only", 1.0), ("tokens-only", 1.0)])
def test_a_link_that_has_ended_before_anything_is_asked(system: str, first_s: float) -> None:
    run = ran(f"system={system}", link=GONE)
    assert len(run.requests[0].token_times_s) == 10
    # The whole prompt is prefilled in 1 s, before any help could come.
    assert run.requests[0].first_token_s == pytest.approx(first_s)


@pytest.mark.parametrize("patience", ["null", "500 ms"])
def test_what_is_lost_with_a_link_is_waited_for_as_long_as_patience_says(patience: str) -> None:
    scenario = tiny(changed(BY_HAND, link=GONE, system="cloud-only"), f"policies.assist={{patience: {patience}}}")
    run = run_scenario(scenario)
    assert run.outcome == ("infeasible" if patience == "null" else "done")
    assert ("the link has ended" in run.why) == (patience == "null")
