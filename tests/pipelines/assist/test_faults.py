"""A cloud that fails a device: the device finishes the answer, and says what happened. Times as in test_by_hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import columns, only, ran
from by_hand import by_hand

from kvferry.analysis.assisted import assisted_metrics
from kvferry.pipelines.record import Run

HELP = "policies.assist={name: optimised, tokens: 5, ratio: 0.25, patience: 500 ms}"
PACE_S, TPOT_S = 0.020 + 0.260 / 4, 0.020


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def failed(what: str, tokens: int = 1, **more: Any) -> Run:
    return ran(HELP, workload={"fault": {"what": what, "tokens": tokens}}, **more)


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
    assert "the cloud has ended the conversation, behind token 3 of 5" in run.notes[0]


def test_a_stream_that_stalls_is_given_up_when_patience_ends() -> None:
    run = failed("stalls", 1)
    first_s = run.requests[0].first_token_s
    # Nothing for half a second; the device has long decoded through what was to come.
    given_up_s = first_s + 0.500
    shown_s = [first_s] + [given_up_s + TPOT_S * n for n in range(1, 10)]
    assert run.requests[0].token_times_s == pytest.approx(shown_s)
    assert "nothing has come from cloud for 0.5 s, behind token 1 of 5" in run.notes[0]


def test_a_scenario_that_says_nothing_of_patience_does_not_wait_for_ever() -> None:
    fault = {"fault": {"what": "stalls", "tokens": 1}}
    run = ran("policies.assist={name: optimised, tokens: 5, ratio: 0.25}", workload=fault)
    first_s = run.requests[0].first_token_s
    assert run.requests[0].token_times_s[1] == pytest.approx(first_s + 60.0 + TPOT_S)
    assert "nothing has come from cloud for 60 s" in run.notes[0]


def test_drafts_need_one_tokenizer_on_both_sides() -> None:
    patience = "policies.assist={name: optimised, patience: 500 ms}"
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
    assert one.token_times_s[3] > one.first_token_s + 0.500


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
    said = "policies.assist={name: optimised, patience: 500 ms}"
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
