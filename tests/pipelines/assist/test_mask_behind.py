"""A mask in a message of its own, behind the first token: what may become of it. Times as in test_by_hand."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from assisted import BY_HAND, columns, only, ran
from by_hand import by_hand
from odd_values import ODD
from tiny import changed, tiny

from kvferry.cloud.asked import asked_of
from kvferry.cloud.messages import BadMessage, ask
from kvferry.cloud.said import mask_of
from kvferry.cloud.story import Story
from kvferry.pipelines.assist import service
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.assist.help import Help
from kvferry.specs.errors import InputError

HELP = "policies.assist={name: optimised, tokens: 5, ratio: 0.25, patience: 500 ms, mask: behind-token}"
# The first token; and with a mask of 100 B, in a frame of as many, refined by 159 ms.
FIRST_S, MASK_S = 0.1501, 0.1692
OWN_S, TPOT_S = MASK_S + 0.260, 0.020
# What the device promises when it has the first token: 20 ms of refining, 0.2 for the mask and 260 of its own.
PACE_S = TPOT_S + (0.020 + 0.0002 + 0.260) / 4


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def failed(what: str, tokens: int = 1, output: int = 10, **more: Any) -> Run:
    return ran(HELP, workload={"output": output, "fault": {"what": what, "tokens": tokens}}, **more)


def shown_s(run: Run) -> tuple[float, ...]:
    (one,) = run.requests
    assert one.first_token_s == pytest.approx(FIRST_S)
    return one.token_times_s


@pytest.mark.parametrize(
    ("what", "says"), [("damaged-mask", "the mask is damaged"), ("other-mask", "the mask belongs to another prompt")]
)
def test_a_mask_that_is_of_no_use(what: str, says: str) -> None:
    run = failed(what)
    got = only(run)
    # The whole prompt, at once; the cloud's tokens are spread over it.
    assert got["own_first_s"] == pytest.approx(MASK_S + 1.000)
    pace_s = TPOT_S + (MASK_S + 1.000 - FIRST_S) / 4
    assert shown_s(run)[:5] == pytest.approx([FIRST_S + pace_s * n for n in range(5)])
    assert says in run.notes[0]
    assert "the whole prompt is prefilled" in run.notes[0]


def test_a_cloud_that_falls_silent_before_the_mask() -> None:
    run = failed("stalls", 1)
    own_s = FIRST_S + 0.500 + 1.000
    assert shown_s(run) == pytest.approx([FIRST_S, *(own_s + TPOT_S * n for n in range(1, 10))])
    assert "no mask has come from cloud for 0.5 s" in run.notes[0]


def test_a_mask_is_waited_for_a_second_whatever_patience_there_is() -> None:
    fault = {"fault": {"what": "stalls", "tokens": 1}}
    run = ran(HELP.replace("500 ms", "null"), workload=fault)
    assert only(run)["own_first_s"] == pytest.approx(FIRST_S + 1.000 + 1.000)
    # Or twice as long as it should take.
    slow = {"handling": {**BY_HAND["workload"]["handling"], "refine_token": "2 ms"}}
    run = ran(HELP.replace("500 ms", "null"), workload={**fault, **slow})
    assert only(run)["own_first_s"] == pytest.approx(FIRST_S + 2 * (2.000 + 0.0002) + 1.000)


def test_a_cloud_that_dies_before_the_mask() -> None:
    run = failed("dies", 1)
    own_s = FIRST_S + 1.000
    assert shown_s(run) == pytest.approx([FIRST_S, *(own_s + TPOT_S * n for n in range(1, 10))])
    assert "the cloud has ended the conversation" in run.notes[0]


@pytest.mark.parametrize("what", ["dies", "stalls"])
def test_a_cloud_that_dies_or_stalls_behind_its_third_token(what: str) -> None:
    times_s = shown_s(failed(what, 3))
    assert times_s[:3] == pytest.approx([FIRST_S + PACE_S * n for n in range(3)])
    assert times_s[4:] == pytest.approx([times_s[3] + TPOT_S * n for n in range(1, 7)])
    assert times_s[3] <= OWN_S + 3 * TPOT_S + 1e-9


@pytest.mark.parametrize(("what", "own_s"), [("dies", FIRST_S + 1.0), ("stalls", FIRST_S + 1.5), (None, OWN_S)])
def test_a_first_token_alone_and_its_mask(what: str | None, own_s: float) -> None:
    fault = {} if what is None else {"fault": {"what": what, "tokens": 1}}
    run = ran(HELP.replace("tokens: 5", "tokens: 1"), workload=fault)
    assert shown_s(run) == pytest.approx([FIRST_S, *(own_s + TPOT_S * n for n in range(1, 10))])


def test_a_mask_behind_its_time_does_not_hold_up_the_tokens_behind_it() -> None:
    # From 155 ms on nothing crosses for 0.6 s: the mask is given up at 650 ms, and comes at 755, the tokens with it.
    run = ran(HELP, link={"outages": [{"start": "155 ms", "duration": "600 ms"}]})
    got, times_s = only(run), shown_s(run)
    own_s = FIRST_S + 0.500 + 1.000
    assert got["own_first_s"] == pytest.approx(own_s)
    assert (got["came"], got["lost"]) == (5, 1)
    # All five were due when it was given up. Their place taken, the device's own is next.
    assert all(0.755 < time_s < 0.760 for time_s in times_s[1:5])
    assert times_s[5:] == pytest.approx([own_s + TPOT_S * n for n in range(5, 10)])


def test_a_first_answer_behind_patience_is_shown_with_the_tokens_behind_its_mask() -> None:
    run = ran(HELP.replace("500 ms", "100 ms"), link={"rtt": "300 ms"})
    got = only(run)
    assert got["first_s"] == pytest.approx(0.020 + 0.004 + 0.150 + 0.105 + 0.150 + 0.0011)
    # From 120 ms on it prefills the whole prompt: no mask is waited for.
    assert got["own_first_s"] == pytest.approx(1.120)
    assert got["pace_s"] == pytest.approx(TPOT_S + (1.120 - got["first_s"]) / 4)
    assert got["largest_gap_s"] == pytest.approx(got["pace_s"])
    assert got["came"] == 5


@pytest.mark.parametrize("asked", [1, 5])
@pytest.mark.parametrize(("what", "tokens"), [(None, 5), ("stalls", 1), ("stalls", 3), ("damaged-mask", 5)])
def test_what_is_left_of_one_request_is_no_part_of_the_next(what: str | None, tokens: int, asked: int) -> None:
    fault = {} if what is None else {"fault": {"what": what, "tokens": tokens}}
    run = ran(HELP.replace("tokens: 5", f"tokens: {asked}"), workload={"requests": 3, **fault})
    assert [len(one.token_times_s) for one in run.requests] == [10, 10, 10]
    waits_s = [one.token_times_s[0] - one.arrival_s for one in run.requests]
    assert waits_s == pytest.approx([FIRST_S] * 3)


def test_a_slot_is_held_no_longer_than_with_the_paper() -> None:
    # The cloud decodes while it refines.
    held_s = [
        ran(HELP.replace("behind-token", mask), "policies.serving={name: slots, slots: 1}").assisted.cloud[  # type: ignore[union-attr]
            "cloud_latency_s"
        ]
        for mask in ("behind-token", "with-token")
    ]
    assert held_s == pytest.approx([0.140, 0.160])


@pytest.mark.parametrize("mask", [5, b"\0", {}, float("nan"), ["x"], True])
def test_a_mask_that_is_none_ends_the_conversation(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = service.mask_behind
    monkeypatch.setattr(service, "mask_behind", lambda *args: good(*args) | {"mask": mask})
    run = ran(HELP)
    assert only(run)["own_first_s"] == pytest.approx(MASK_S + 1.000)
    assert "what the cloud has sent is no answer: its mask is" in run.notes[0]


STORY = Story(request=3, device=0, prompt=10, output=5, scene=0, arrival_s=0.0, tokens=5, ratio=0.5)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("key", ["request", "mask", "bytes"])
def test_a_message_with_any_odd_value_is_a_mask_or_bad(key: str, value: Any) -> None:
    message = {"request": 3, "mask": "x", "bytes": 100.0}
    try:
        found = mask_of(message | {key: value}, STORY)
    except BadMessage:
        assert mask_of(message, STORY) == message
    else:
        assert found is None or isinstance(found["mask"], str | None)
    with pytest.raises(BadMessage, match=f"it lacks {key}" if key != "request" else "no answer"):
        mask_of({name: one for name, one in message.items() if name != key}, STORY)


def test_a_request_that_says_nothing_of_a_mask_is_for_the_papers_message() -> None:
    workload = tiny(BY_HAND).assist.workload
    papers, _ = ask(workload, STORY, wanted=Help(mask="with-token"))
    behind, _ = ask(workload, STORY, wanted=Help())
    assert "mask" not in asked_of(papers)
    assert asked_of(behind) == papers | {"mask": "behind-token"}
    for odd in (*ODD, "before-token"):
        with pytest.raises(BadMessage, match="its mask is"):
            asked_of(behind | {"mask": odd})


def test_a_cloud_that_answers_alone_is_asked_to_wait_for_the_kv() -> None:
    workload = tiny(BY_HAND).assist.workload
    alone = replace(STORY, tokens=10, ratio=1.0, output=10, beyond="why")
    asked, _ = ask(workload, alone, wanted=Help())
    assert asked["moved"] is True
    assert asked_of(asked) == asked
    for other in (
        ask(workload, alone, wanted=Help(mask="with-token")),
        ask(workload, alone, wanted=Help(), pace_s=0.1),
    ):
        assert "moved" not in other[0]
    assert "moved" not in ask(workload, replace(alone, beyond=None), wanted=Help())[0]
    for odd in (one for one in ODD if not isinstance(one, bool)):
        with pytest.raises(BadMessage, match="its moved is"):
            asked_of(asked | {"moved": odd})


def test_a_prompt_that_is_kept_whole_has_no_mask_to_wait_for() -> None:
    # As many tokens as P has: none for 2 s of refining.
    workload = {"output": 60, "handling": {**BY_HAND["workload"]["handling"], "refine_token": "2 ms"}}
    runs = [
        ran(f"policies.assist={{name: optimised, ratio: 1.0, mask: {mask}}}", workload=workload)
        for mask in ("behind-token", "with-token")
    ]
    assert runs[0].requests == runs[1].requests
    assert columns(runs[0])["response_bytes"] == columns(runs[1])["response_bytes"]


def test_a_cloud_that_answers_alone_makes_no_mask() -> None:
    with pytest.raises(InputError, match="mask: has no effect on this system"):
        run_scenario(tiny(changed(BY_HAND, system="cloud-only"), "policies.assist={mask: behind-token}"))
