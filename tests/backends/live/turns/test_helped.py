"""Turns that a real cloud helps with: what they say and leave, and what becomes of them without it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_TURNS, changed, tiny, turns

from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from kvferry.backends.live.turns.runner import TurnRunner  # noqa: E402
from kvferry.model.turn_session import TurnSession  # noqa: E402

HELPED: dict[str, Any] = changed(
    LIVE_TURNS,
    precision={"kv_value_bytes": 2},
    machines={"cloud": {"device": "laptop-cpu", "model": "byte-small"}},
    policies={"assist": {"name": "tokens-only", "assist": {"name": "optimised", "tokens": 3, "patience": "20 s"}}},
    live={"dtype": "float16"},
)


def live(*overrides: str, **changes: Any) -> Scenario:
    return tiny(HELPED, *overrides, **changes)


@pytest.fixture(scope="module")
def alone() -> Any:
    """What is answered without a cloud."""
    without = changed(HELPED, policies={"assist": None}, budget={"kept_memory": "8 MiB"})
    scenario = tiny({key: value for key, value in without.items() if key != "machines"})
    return run_scenario(scenario).measured["answers"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that reads prompts so slowly that all tokens of the cloud's are in time."""
    really = TurnSession.read_layer

    def read_layer(self: TurnSession, layer: int, tokens: int) -> Any:
        time.sleep(0.15)
        return really(self, layer, tokens)

    monkeypatch.setattr(TurnSession, "read_layer", read_layer)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("tokens", [3, 7])
@pytest.mark.parametrize("catch_up", ["decode", "prefill"])
def test_the_clouds_tokens_are_those_of_the_device(tokens: int, catch_up: str, alone: Any) -> None:
    helped = HELPED["policies"]["assist"]
    assist = {**helped["assist"], "tokens": tokens, "catch_up": catch_up}
    run = run_scenario(live("workload.turns=3", policies={"assist": {**helped, "assist": assist}}))
    # Prompts are sent as text: answers that are none are read otherwise there.
    assert [one.said_by_cloud for one in turns(run)] == [tokens] * 3
    # What a turn leaves is whole, also where the cloud has said all of it.
    assert run.measured["answers"] == {turn: answer for turn, answer in alone.items() if int(turn) < 3}
    assert [one.from_memory + one.from_flash for one in turns(run)] == [0, 80, 96]


@pytest.mark.usefixtures("slow")
def test_a_cloud_of_another_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    really = TurnRunner.handle

    def handle(runner: TurnRunner, handling: Any, turn: int | None) -> Any:
        found = really(runner, handling, turn)
        return None if found is None else replace(found, tokenizer="another")

    monkeypatch.setattr(TurnRunner, "handle", handle)
    with pytest.raises(InputError, match=r"machines\.cloud\.model: .* one with the same tokenizer would do"):
        run_scenario(live("workload.turns=1"))


def test_whoever_is_first(alone: Any) -> None:
    run = run_scenario(live())
    assert run.measured["answers"] == alone
    assert [one.from_flash > 0 for one in turns(run)] == [False, True, True, True, False, True]


@pytest.mark.usefixtures("slow")
def test_a_link_that_ends(tmp_path: Path, alone: Any) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("time_s,bytes_per_s\n0,100000\n0.1,100000\n")
    run = run_scenario(live("workload.turns=3", link={"rate": None, "trace": str(trace), "on_end": "end"}))
    assert run.measured["answers"] == {turn: answer for turn, answer in alone.items() if int(turn) < 3}
    assert turns(run)[-1].said_by_cloud == 0


def test_a_later_process_finds_what_was_left(tmp_path: Path, alone: Any) -> None:
    kept = {**HELPED["live"], "kv_file": str(tmp_path / "kept.kv")}
    scenario = live("budget.kept_memory=64 KiB", live=kept)
    first, again = run_scenario(scenario), run_scenario(scenario)
    assert first.measured["answers"] == again.measured["answers"] == alone
    assert turns(first)[0].from_flash == 0 < turns(again)[0].from_flash


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("policies.keep=memory-cloud", "keep: memory-cloud: a real cloud that helps is sent whole prompts"),
        ("workload.in_cloud=contexts", "workload.in_cloud: a real cloud that helps is sent whole prompts"),
        ("policies.decode=kvswap", "kvswap decodes from KV elsewhere than in memory"),
        ("machines.cloud.count=2", "one instance prefills and decodes; name it cloud, with count: 1"),
        ("live.weights=random", "live.weights: a prompt is sent as text, and this model has no tokenizer"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(override: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        run_scenario(live(override))
    assert any(what in line for line in str(error.value).splitlines()), str(error.value)
