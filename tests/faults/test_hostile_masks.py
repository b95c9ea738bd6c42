"""A cloud that sends its mask where it likes among its tokens, or what is none: the answer is whole, in time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from deadline import deadline
from hostile_assist import HOSTILE, OUTPUT, HostileCloud, Voice, as_fast_as_it_can, one_model  # noqa: F401
from tiny import changed

from kvferry.backends.live.wire.event import MESSAGE
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.assist.prompt_mask import mask_of_text
from kvferry.scenarios.loader import load_scenario

pytestmark = pytest.mark.torch
TOKENS = 5
# The device takes itself for a slow one, and so promises a slow pace.
LIVE = changed(
    HOSTILE,
    device={"extends": "laptop-cpu", "processors": {"cpu": {"bytes_per_s": "30 MB/s"}}},
    policies={"assist": {"name": "optimised", "tokens": TOKENS, "ratio": 0.5, "patience": "60 s"}},
)


def ran(*steps: str, asked: int = TOKENS, **changes: Any) -> Run:
    """A run with a cloud that says its first token and then these: see `_say`."""

    def way(voice: Voice, request: dict[str, Any]) -> None:
        voice.answer(request)
        for step in steps:
            _say(voice, request, step)

    policies = {"assist": {**LIVE["policies"]["assist"], "tokens": asked}}
    with deadline(60), HostileCloud(way) as cloud:
        run = run_scenario(load_scenario(changed(LIVE, live={"cloud": cloud.url}, policies=policies, **changes)))
    assert run.outcome == "done", run.why
    (one,) = run.requests
    assert len(one.token_times_s) == OUTPUT
    assert list(one.token_times_s) == sorted(one.token_times_s)
    return run


def _say(voice: Voice, request: dict[str, Any], step: str) -> None:
    begins = list(range(len(request["text"][1])))
    kept = np.array([n % 2 == 0 for n in begins])
    good = {"request": request["request"], "bytes": 100.0, "mask": mask_of_text(kept, begins, request["text"])}
    ways: dict[str, Callable[[], None]] = {
        "token": voice.part,
        "end": voice.end,
        "mask": lambda: voice.say(MESSAGE, good),
        "other's mask": lambda: voice.say(MESSAGE, good | {"request": request["request"] + 1}),
        "bad mask": lambda: voice.say(MESSAGE, good | {"mask": 5}),
        "odd token": lambda: voice.part(5),
        "failure": lambda: voice.say(MESSAGE, {"request": request["request"], "failed": "no mask today"}),
        "flood of masks": lambda: as_fast_as_it_can(ways["mask"], 3.0),
        "flood of ends": lambda: as_fast_as_it_can(voice.end, 3.0),
        "flood of others": lambda: as_fast_as_it_can(ways["other's mask"], 3.0),
    }
    ways[step]()


def column(run: Run, name: str) -> float:
    assert run.assisted is not None
    (found,) = run.assisted.columns[name].tolist()
    return float(found)


ALL = 4 * ["token"]


@pytest.mark.parametrize(
    "steps",
    [
        ["mask", *ALL, "end"],
        ["end", "mask", *ALL, "end"],
        ["token", "end", "mask", "token", "token", "token", "end"],
        ["token", "token", "end", "other's mask", "mask", "token", "token", "end"],
        [*ALL, "end", "mask"],
        # What is sent in the midst of a stream, on a wire that lets it through.
        ["token", "mask", "token", "token", "token", "end"],
    ],
)
def test_a_mask_before_between_or_behind_the_tokens(steps: list[str]) -> None:
    run = ran(*steps)
    assert (column(run, "came"), column(run, "lost")) == (TOKENS, 0), run.notes


@pytest.mark.parametrize("steps", [["mask"], ["other's mask", "mask"]])
def test_a_mask_behind_the_only_token(steps: list[str]) -> None:
    assert column(ran(*steps, asked=1), "lost") == 0


@pytest.mark.parametrize(
    ("steps", "came", "says"),
    [
        (["token", "end", "end"], 2, "the cloud has ended the conversation"),
        (["token", "end", "failure"], 2, "the cloud could not go on: no mask today"),
        (["token", "end", "bad mask"], 2, "what the cloud has sent is no answer: its mask is 5"),
        (["token", "end", "mask", "token", "end"], 3, "the cloud has ended the conversation"),
        (["token", "end", "mask", "mask"], 2, "the cloud has ended the conversation"),
        (["odd token"], 1, "what the cloud has sent is no answer: its token is 5"),
        ([*ALL, "end", "failure"], 5, "the cloud could not go on: no mask today"),
        (["flood of masks"], 1, "the cloud has ended the conversation"),
        (["flood of ends"], 1, "the cloud has ended the conversation"),
    ],
)
def test_what_is_none_is_told_and_what_came_is_shown(steps: list[str], came: int, says: str) -> None:
    run = ran(*steps)
    assert column(run, "lost") == 1
    assert column(run, "came") == came
    assert says in run.notes[0]


@pytest.mark.parametrize("steps", [["token"], ["token", "end"], [*ALL, "end"], ["token", "end", "flood of others"]])
def test_a_mask_that_never_comes_is_given_up(steps: list[str]) -> None:
    run = ran(*steps)
    assert "no mask has come from cloud for 1 s" in run.notes[0]


def test_one_token_more_than_asked_for_before_the_mask_ends_the_conversation() -> None:
    run = ran(*ALL, "token", "end", "mask")
    assert column(run, "came") == TOKENS
    assert column(run, "shown") == OUTPUT
