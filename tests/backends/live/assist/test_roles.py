"""A device and a cloud with real models, in one process: every system, and every fault, ends with the whole answer."""

import re
import time
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")
from deadline import deadline
from tiny import LIVE_ASSISTED, changed

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.model.request_session import RequestSession
from kvferry.pipelines.assist import device_request
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.own_model import OwnModel
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.pipelines.workload import Process
from kvferry.scenarios.loader import load_scenario

pytestmark = pytest.mark.torch
OUTPUT = 12
LIVE = changed(
    LIVE_ASSISTED,
    device={"extends": "laptop-cpu", "storage": "nvme"},
    link={"rate": "20 Mbit/s"},
    workload={"prompt": 320, "beginning": 32, "question": 48, "output": OUTPUT},
    policies={"assist": {"name": "optimised", "tokens": 5, "ratio": 0.5, "patience": "20 s"}},
)

SLOW = {"processors": {"cpu": {"bytes_per_s": "30 MB/s"}}}
PAPERS, BEHIND = ({"assist": {**LIVE["policies"]["assist"], "mask": mask}} for mask in ("with-token", "behind-token"))


def ran(**changes: Any) -> Run:
    run = run_scenario(load_scenario(changed(LIVE, **changes)))
    assert run.outcome == "done", run.why
    assert run.assisted is not None
    for one in run.requests:
        assert len(one.token_times_s) == OUTPUT
        assert list(one.token_times_s) == sorted(one.token_times_s)
    return run


def column(run: Run, name: str) -> list[float]:
    assert run.assisted is not None
    return run.assisted.columns[name].tolist()


def said(run: Run) -> str:
    assert run.assisted is not None
    return run.assisted.answers[0]


@pytest.fixture(scope="module")
def alone() -> str:
    """What the model says to the whole prompt."""
    return said(ran(system="device-only", policies={"assist": None}))


@pytest.mark.parametrize(
    ("system", "policies"),
    [
        ("cloud-only", {"assist": None}),
        ("tokens-only", {"assist": {"name": "optimised", "tokens": 5, "ratio": 1.0}}),
        ("speculative-edge", {"assist": None}),
    ],
)
def test_with_one_model_on_both_sides_the_answer_is_the_same(
    system: str, policies: Any, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No mask is wanted: the cloud does not work for one.
    monkeypatch.setattr(RequestSession, "_observe", None)
    run = ran(system=system, policies=policies)
    assert said(run) == alone
    # The device prefills the whole prompt as fast as the cloud does: any token of the cloud's may come too late.
    assert column(run, "lost") == [0] or system == "tokens-only"


def test_a_refined_prompt_and_corrected_tokens(alone: str) -> None:
    # A slow device promises a slow pace: however busy this machine is, the cloud's tokens are in time.
    run = ran(workload={"requests": 2}, device=SLOW)
    # The cloud's tokens, whatever the device makes of what is left of its prompt.
    assert said(run)[:5] == alone[:5]
    assert column(run, "came") == [5, 5]
    assert all(0 <= corrected <= 5 for corrected in column(run, "corrected"))
    assert run.tally.bytes_of("uplink", "Message") > 2 * 320


def test_tokens_taken_in_one_pass_leave_the_answer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, caught_up, passes = RequestSession.more, OwnModel.catch_up, list[int]()

    def slow(self: RequestSession, *args: Any) -> Any:
        # The cloud's tokens are there before the device has prefilled.
        time.sleep(0.4)
        return prefill(self, *args)

    def counted(self: OwnModel, *args: Any) -> Process:
        passes.append(len(self._answer))
        return caught_up(self, *args)

    monkeypatch.setattr(RequestSession, "more", slow)
    monkeypatch.setattr(OwnModel, "catch_up", counted)
    asked = LIVE["policies"]["assist"]
    decoded, at_once = (ran(policies={"assist": {**asked, "catch_up": how}}) for how in ("decode", "prefill"))
    assert passes == [5] and said(at_once) == said(decoded)
    assert column(at_once, "came") == [5] and column(at_once, "lost") == [0]


def test_a_mask_behind_the_first_token_leads_to_the_same_tokens() -> None:
    with_token, behind = (ran(device=SLOW, policies=policies) for policies in (PAPERS, BEHIND))
    assert said(behind) == said(with_token)
    for run in (with_token, behind):
        assert column(run, "came") == [5]
        assert column(run, "lost") == [0]
    # One more frame crosses, of 60 B.
    assert column(behind, "response_bytes")[0] == column(with_token, "response_bytes")[0] + 60


class Refining:
    """A refiner that takes until its device has been told so many tokens, and that is waited for."""

    def __init__(self, patch: pytest.MonkeyPatch, told: int, patience_s: float = 60.0) -> None:
        self.made_behind: list[int] = []
        self._told, self._enough = 1, Event()
        refine, came = AssistRunner._refine, Answer.came

        def slowly(runner: AssistRunner, *args: Any) -> str:
            assert self._enough.wait(30)
            self.made_behind.append(self._told)
            return refine(runner, *args)

        def counted(answer: Answer, *args: Any) -> None:
            came(answer, *args)
            self._told += 1
            if self._told >= told:
                self._enough.set()

        patch.setattr(AssistRunner, "_refine", slowly)
        patch.setattr(Answer, "came", counted)
        patch.setattr(device_request, "_MASK_S", patience_s)

    def over(self) -> None:
        self._enough.set()


def test_tokens_come_while_a_mask_is_made_and_go_on_behind_it(monkeypatch: pytest.MonkeyPatch, alone: str) -> None:
    refining = Refining(monkeypatch, told=3)
    with deadline(120):
        run = ran(device=SLOW, policies=BEHIND)
    assert refining.made_behind[0] >= 3
    assert said(run)[:5] == alone[:5]
    assert (column(run, "came"), column(run, "lost")) == ([5], [0])


@pytest.mark.parametrize("what", ["stalls", "dies"])
def test_nothing_comes_behind_the_token_at_which_a_cloud_falls_silent(
    what: str, monkeypatch: pytest.MonkeyPatch, alone: str
) -> None:
    # The mask is made behind the third, and so is not sent.
    Refining(monkeypatch, told=3, patience_s=1.0)
    with deadline(120):
        run = ran(device=SLOW, policies=BEHIND, workload={"fault": {"what": what, "tokens": 3}})
    assert said(run) == alone
    assert (column(run, "came"), column(run, "lost")) == ([3], [1])
    assert ("no mask has come" if what == "stalls" else "has ended the conversation, behind token 3") in run.notes[0]


def test_a_mask_that_comes_when_it_has_been_given_up_is_of_no_use(monkeypatch: pytest.MonkeyPatch, alone: str) -> None:
    refining, prefill = Refining(monkeypatch, told=99, patience_s=0.2), OwnModel.prefill

    def then(self: OwnModel, *args: Any) -> Any:
        # The whole prompt, at once, without it.
        if args[1]:
            refining.over()
        return prefill(self, *args)

    monkeypatch.setattr(OwnModel, "prefill", then)
    with deadline(120):
        run = ran(device=SLOW, policies=BEHIND)
    assert said(run) == alone
    assert "no mask has come from cloud for 0.2 s" in run.notes[0]


def test_a_mask_that_never_comes_behind_the_only_token_keeps_no_run_from_its_end(alone: str) -> None:
    policies = {"assist": {**BEHIND["assist"], "tokens": 1}}
    with deadline(120):
        run = ran(policies=policies, workload={"fault": {"what": "stalls", "tokens": 1}})
    assert said(run) == alone
    assert "no mask has come from cloud for 1 s" in run.notes[0]


@pytest.mark.parametrize("policies", [{"tokens": 5, "ratio": 1.0}, {"tokens": 1, "ratio": 1.0}])
def test_a_device_that_prefills_its_whole_prompt_waits_for_no_silent_cloud(policies: Any, alone: str) -> None:
    policies = {"assist": {"name": "optimised", "patience": "100 s", **policies}}
    with deadline(60):
        run = ran(link={"outages": [{"start": "0 s", "duration": "100 s"}]}, policies=policies)
    assert said(run) == alone
    assert (column(run, "came"), column(run, "lost")) == ([0], [1])
    assert column(run, "first_s") == column(run, "own_first_s")
    assert "token 1 of " in run.notes[0]


def test_a_prompt_stays_unless_the_scenario_says_otherwise(alone: str) -> None:
    run = ran(workload={"privacy": None})
    assert said(run) == alone
    assert run.tally.bytes_of("uplink", "Message") == 0
    assert "workload.privacy is not set" in run.notes[0]


def test_a_model_that_is_not_resident_is_loaded_for_each_request(alone: str) -> None:
    run = ran(workload={"resident": False, "requests": 2, "privacy": "stays"})
    assert said(run) == alone
    assert sum(span.label == "Read" for span in run.spans) == 2


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ("cloud-only", "token [234] of 12 was not there when"),
        ("speculative-edge", "nothing has come from cloud for 1."),
    ],
)
def test_a_cloud_alone_or_in_turns_that_stalls_is_not_waited_for(system: str, says: str, alone: str) -> None:
    run = ran(system=system, policies={"assist": None}, workload={"fault": {"what": "stalls", "tokens": 3}})
    assert any(re.search(says, note) for note in run.notes), run.notes
    assert column(run, "lost") == [1]
    assert said(run) == alone


@pytest.mark.parametrize(
    ("fault", "says", "whole"),
    [
        ({"what": "unreachable"}, "the cloud has ended the conversation", True),
        ({"what": "dies", "tokens": 1}, "behind token 1 of 5", False),
        # Behind three tokens at the latest: on a busy machine the device may have its own before the cloud's are there.
        ({"what": "stalls", "tokens": 3}, "token [234] of 5 was not there when", False),
        ({"what": "damaged-mask"}, "the mask is damaged", True),
        ({"what": "other-mask"}, "another prompt", True),
        ({"what": "other-tokenizer"}, "taken as text", False),
    ],
)
@pytest.mark.parametrize("policies", [PAPERS, BEHIND], ids=["with-token", "behind-token"])
def test_a_cloud_that_fails(fault: dict[str, Any], says: str, whole: bool, policies: Any, alone: str) -> None:
    run = ran(workload={"fault": fault}, policies=policies)
    if policies is BEHIND and fault.get("tokens") == 1:
        # It dies before the mask: the whole prompt is what is left.
        says, whole = "the cloud has ended the conversation", True
    assert any(re.search(says, note) for note in run.notes), run.notes
    assert column(run, "lost") == [1]
    assert said(run)[:1] == alone[:1]
    # With the whole prompt, one model says the same wherever it is asked.
    assert not whole or said(run) == alone
