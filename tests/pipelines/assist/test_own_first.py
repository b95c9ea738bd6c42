"""A device that prefills its whole prompt from the start shows whichever token comes first. Times as in test_by_hand:
1 s for its own prefill, begun as its request leaves, 20 ms behind the arrival."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import columns, only, ran
from by_hand import by_hand

OWN_S, TPOT_S = 1.020, 0.020
# 20 ms to prepare, half a round trip and 4 ms for the prompt, 5 ms, the cloud's prefill, 1,100 B and the way back.
CLOUD_S = 0.020 + 0.010 + 0.004 + 0.005 + 0.100 + 0.0011 + 0.010
OUT: dict[str, Any] = {"link": {"outages": [{"start": "50 ms", "duration": "100 s"}]}}
STALLS = {"workload": {"fault": {"what": "stalls", "tokens": 1}}, "link": {"rtt": "4 s"}}


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


@pytest.mark.parametrize("patience", ["planned", "auto", "null", "5 s"])
@pytest.mark.parametrize("changes", [OUT, STALLS, {"link": {"rtt": "20 s"}}])
@pytest.mark.parametrize(
    ("system", "help_"),
    [("tokens-only", "tokens: 5"), ("pd-device", "tokens: 5, ratio: 1"), ("tokens-only", "tokens: 1")],
)
def test_its_own_where_the_cloud_is_silent(system: str, help_: str, changes: Any, patience: str) -> None:
    run = ran(f"policies.assist={{{help_}, patience: {patience}}}", system=system, **changes)
    got = only(run)
    assert got["own_first_s"] == pytest.approx(OWN_S)
    assert run.requests[0].token_times_s == pytest.approx([OWN_S + TPOT_S * n for n in range(10)])
    assert (got["came"], got["lost"]) == (0, 1)
    # With `auto` its patience ends as its own prefill does.
    assert "token 1 of " in run.notes[0] or (patience == "auto" and "nothing has come from cloud" in run.notes[0])


def test_an_answer_of_one_token() -> None:
    run = ran("policies.assist={tokens: 5}", system="tokens-only", workload={"output": 1}, **OUT)
    assert run.requests[0].token_times_s == pytest.approx([OWN_S])
    assert "token 1 of 1 was not there when the device had its own, with which it went on" in run.notes[0]


def test_the_clouds_where_that_is_first() -> None:
    got = only(ran("policies.assist={tokens: 5}", system="tokens-only"))
    assert got["first_s"] == pytest.approx(CLOUD_S)
    assert (got["own_first_s"], got["came"], got["lost"]) == (pytest.approx(OWN_S), 5, 0)


def test_each_of_many_whose_prompts_one_cloud_prefills_in_turn() -> None:
    run = ran("policies.assist={tokens: 5}", system="tokens-only", workload={"devices": 40})
    waits_s = sorted(one.token_times_s[0] - one.arrival_s for one in run.requests)
    # A tenth of a second each and steps between them, until all have their own: eight are the cloud's at most.
    helped = sum(came > 0 for came in columns(run)["came"])
    assert 4 < helped <= 8
    assert all(wait_s < OWN_S for wait_s in waits_s[:helped])
    assert waits_s[helped:] == pytest.approx([OWN_S] * (40 - helped))
    assert columns(run)["own_first_s"] == pytest.approx([OWN_S] * 40)


def test_a_cloud_that_is_left_works_for_the_others() -> None:
    run = ran("policies.assist={tokens: 5}", system="tokens-only", workload={"devices": 40})
    # Prompts whose devices have hung up are not read.
    assert sum(span.label == "Prefill" for span in run.spans if span.resource == "cloud/gpu") < 13
