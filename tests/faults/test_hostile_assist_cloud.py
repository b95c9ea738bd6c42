"""Whatever a cloud says, however often, the device has its answer within its patience and what it takes by itself."""

import math
from time import sleep
from typing import Any

import pytest

pytest.importorskip("torch")
from deadline import deadline
from hostile_assist import HOSTILE, OUTPUT, HostileCloud, Voice, Way, as_fast_as_it_can, one_model  # noqa: F401
from tiny import changed

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.wire.incoming import Incoming
from kvferry.cloud.messages import BadMessage
from kvferry.cloud.said import token_of, verdict_of
from kvferry.cloud.story import Story
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

pytestmark = pytest.mark.torch
PATIENCE_S = 0.5
# What the device takes by itself is far below a second; the machine may be busy with other tests.
ALLOWED_S = PATIENCE_S + 12
ASSIST = {"name": "optimised", "tokens": 4, "ratio": 1.0, "patience": f"{PATIENCE_S} s"}
LIVE = changed(HOSTILE, policies={"assist": ASSIST})


@pytest.fixture(autouse=True)
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its whole prompt is under way from the start: it would have a token of its own before the cloud says anything."""
    really, begun = AssistRunner._prefill, set[tuple[int, int]]()

    def prefill(runner: AssistRunner, op: Any, request: int) -> Any:
        if (id(runner), request) not in begun:
            begun.add((id(runner), request))
            sleep(PATIENCE_S + 0.3)
        return really(runner, op, request)

    monkeypatch.setattr(AssistRunner, "_prefill", prefill)


def ran(way: Way, refuses: int | None = None, **changes: Any) -> Run:
    with deadline(60), HostileCloud(way, refuses) as cloud:
        run = run_scenario(load_scenario(changed(LIVE, live={"cloud": cloud.url}, **changes)))
    assert run.outcome == "done", run.why
    for one in run.requests:
        assert len(one.token_times_s) == OUTPUT
        assert one.token_times_s[-1] - one.arrival_s < ALLOWED_S
        assert list(one.token_times_s) == sorted(one.token_times_s)
    return run


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parts that are kept of a stream, each time that another one has come."""
    kept: list[int] = []
    really = Incoming._serve

    def serve(incoming: Incoming, _: object = None) -> None:
        receivers = [*incoming._receivers]
        really(incoming)
        kept.extend(len(one.values) for one in receivers)

    monkeypatch.setattr(Incoming, "_serve", serve)
    return kept


def noted(run: Run) -> str:
    return "; ".join(run.notes)


def others_answers(voice: Voice, asked: dict[str, Any]) -> None:
    while True:
        voice.answer(asked, request=asked["request"] + 1)
        voice.pause(0.1)


def parts_nobody_waits_for(voice: Voice, asked: dict[str, Any]) -> None:
    while True:
        voice.part()
        voice.pause(0.1)


def a_flood_of_parts(voice: Voice, asked: dict[str, Any]) -> None:
    as_fast_as_it_can(voice.part)


def a_flood_of_others_answers(voice: Voice, asked: dict[str, Any]) -> None:
    as_fast_as_it_can(lambda: voice.answer(asked, request=asked["request"] + 1))


def nothing(voice: Voice, asked: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize("way", [others_answers, parts_nobody_waits_for, a_flood_of_others_answers, nothing])
def test_what_was_not_asked_for_is_no_answer(way: Way) -> None:
    run = ran(way)
    assert f"nothing has come from cloud for {PATIENCE_S:g} s" in noted(run)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_cloud_that_takes_nothing_is_named_with_its_words(status: int) -> None:
    # And is not waited for: that would take longer than `ran` allows.
    patient = {"policies": {"assist": LIVE["policies"]["assist"] | {"patience": "40 s"}}}
    assert f"cannot send to cloud: {status} go away" in noted(ran(nothing, refuses=status, **patient))


def test_a_flood_of_parts_ends_the_conversation_and_is_not_kept(heard: list[int]) -> None:
    assert "cloud sends tokens before its answer, more than an answer has" in noted(ran(a_flood_of_parts))
    assert max(heard) <= OUTPUT + 1


def more_than_were_asked_for(voice: Voice, asked: dict[str, Any]) -> None:
    voice.answer(asked)
    while True:
        voice.part()
        voice.pause(0.1)


def a_flood_behind_the_first(voice: Voice, asked: dict[str, Any]) -> None:
    voice.answer(asked)
    as_fast_as_it_can(voice.part)


@pytest.mark.parametrize("way", [more_than_were_asked_for, a_flood_behind_the_first])
@pytest.mark.parametrize("system", ["pd-device", "cloud-only"])
def test_more_tokens_than_were_asked_for_do_not_count(system: str, way: Way, heard: list[int]) -> None:
    only_patience = {"policies": {"assist": {"name": "optimised", "patience": f"{PATIENCE_S} s"}}}
    run = ran(way, system=system, **(only_patience if system == "cloud-only" else {}))
    assert run.assisted is not None
    asked = OUTPUT if system == "cloud-only" else 4
    assert run.assisted.columns["came"].tolist() <= [asked]
    assert run.assisted.columns["shown"].tolist() == [OUTPUT]
    # A busy device hears another one or two before it has hung up.
    assert max(heard) <= OUTPUT + 1


def silence_behind_the_second(voice: Voice, asked: dict[str, Any]) -> None:
    voice.answer(asked)
    voice.part()


def a_pace_of_five_seconds(voice: Voice, asked: dict[str, Any]) -> None:
    voice.answer(asked, tpot_s=5.0)
    for _ in range(3):
        voice.pause(5.0)
        voice.part()


@pytest.mark.parametrize("way", [silence_behind_the_second, a_pace_of_five_seconds])
def test_the_devices_own_token_is_shown_where_the_clouds_is_late(way: Way) -> None:
    run = ran(way, policies={"assist": {**LIVE["policies"]["assist"], "patience": "60 s"}})
    assert "was not there when the device had its own" in noted(run)


def test_further_requests_are_asked_anew() -> None:
    run = ran(silence_behind_the_second, workload={"requests": 2})
    assert len(run.requests) == 2
    assert run.assisted is not None
    assert (run.assisted.columns["came"] > 0).all()


BYTES = b"\0"
ODD: list[Any] = [
    *(5, "abc", [], [1], math.nan, -1, (), (1, "x", 2), (1, None), ("x", 5), (1.5, "a"), 10**30, {}, BYTES),
    *([1, "x"], (-1, "x"), (10**9, "x"), (True, "x"), (1, "\ud800"), (1, "x" * 10_000), (1, b"x"), None, (None, None)),
]


def story(**changes: Any) -> Story:
    text = ("", "what", "?")
    return Story(
        request=0,
        device=0,
        prompt=9,
        output=9,
        scene=0,
        arrival_s=0,
        text=text,
        tokenizer="t",
        vocabulary=260,
        **changes,
    )


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_a_token_is_an_id_of_the_device_with_its_text(odd: Any) -> None:
    with pytest.raises(BadMessage, match="its token is"):
        token_of(odd, story(), by_text=False)
    assert token_of((259, "x"), story(), by_text=False) == (259, "x")
    # Another tokenizer may have more of them.
    assert token_of((260, "x"), story(), by_text=True) == (260, "x")


@pytest.mark.parametrize(
    ("stands", "said"),
    [(0, []), (6, 6 * [(1, "x")]), (2, [(1, "x")]), (1, None), (1, [5]), (1, [(10**9, "x")]), (10**9, [(1, "x")])],
)
def test_a_verdict_brings_a_token_for_each_draft_that_stands(stands: int, said: Any) -> None:
    with pytest.raises(BadMessage):
        verdict_of({"request": 0, "stands": stands, "said": said}, story(), 5)
    good = {"request": 0, "stands": 2, "said": [(1, "x"), (2, "y")]}
    assert verdict_of(good, story(), 5) == good
    assert verdict_of(good | {"request": 1}, story(), 5) is None


@pytest.mark.parametrize("token", [5, (10**9, "x")], ids=str)
@pytest.mark.parametrize("behind", [0, 1])
def test_odd_tokens_are_told_and_the_answer_is_whole(behind: int, token: Any) -> None:
    def way(voice: Voice, asked: dict[str, Any]) -> None:
        voice.answer(asked, **({} if behind else {"token": token}))
        for _ in range(3):
            voice.part(token)
            voice.pause(0.01)
        voice.end()

    # So long a prompt that the device has no token of its own before.
    assert "what the cloud has sent is no answer: its token is" in noted(ran(way, workload={"prompt": 1000}))
