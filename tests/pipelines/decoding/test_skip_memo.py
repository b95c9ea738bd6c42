"""Runs that skip the same tokens of the same clusters do so once, and come to what each comes to by itself."""

from typing import Any

import pytest
from tiny import tiny

from kvferry.pipelines.decoding import skip_memo
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario
from kvferry.system import content
from kvferry.system.memo import Memo

SYSTEMS = ("dynakv", "pqcache", "clusterkv")
WORKLOAD = {"kind": "decode", "context": 256, "output": 128, "decoded": 9, "part": "end"}


@pytest.fixture(autouse=True)
def skips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nothing is remembered; how many tokens were skipped one by one."""
    monkeypatch.setattr(skip_memo, "_REACHED", Memo[skip_memo.Reached](2))
    skipped, skip = list[int](), DecodeState.skip

    def noted(self: DecodeState, tokens: int, keys: Any) -> None:
        skipped.append(tokens)
        skip(self, tokens, keys)

    monkeypatch.setattr(DecodeState, "skip", noted)
    return skipped


def scenario(system: str = "dynakv", rate: str = "500 MB/s", **changes: Any) -> Scenario:
    return tiny(
        {
            "name": "skips",
            "system": system,
            "device": {"extends": "laptop-cpu", "storage": {"bytes_per_s": rate, "latency_s": "50 us"}},
            "model": "byte-small",
            "link": {"rate": "1 MB/s"},
            "workload": WORKLOAD,
            "budget": {"kv": "4 MB"},
            **changes,
        }
    )


def said(run: Run) -> Any:
    assert run.decoded is not None
    return run.outcome, [one.token_times_s for one in run.requests], run.energy_j, run.decoded.end_counts


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_comes_to_the_same_whatever_ran_before_it(
    system: str, skips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = scenario(system), scenario(system, "90 MB/s")
    alone = said(run_scenario(slow))
    assert skips == [119]
    monkeypatch.setattr(skip_memo, "_REACHED", Memo[skip_memo.Reached](2))
    behind = said(run_scenario(fast)), said(run_scenario(slow)), said(run_scenario(slow)), said(run_scenario(fast))
    assert skips == [119, 119]
    assert behind[1] == behind[2] == alone
    assert behind[0] == behind[3] != alone


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 7},
        {"policies": {"threshold": 1.1}},
        {"policies": {"buffer_tokens": 3}},
        {"policies": {"selected_share": 0.3}},
        {"policies": {"group_tokens": 8}},
        {"workload": {**WORKLOAD, "keys": {"spread": 0.9}}},
        {"workload": {**WORKLOAD, "decoded": 10}},
    ],
)
def test_runs_that_differ_in_what_clusters_come_from_share_nothing(changes: dict[str, Any], skips: list[int]) -> None:
    run_scenario(scenario())
    run_scenario(scenario(**changes))
    assert len(skips) == 2


def test_what_others_have_written_is_not_remembered(skips: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another policy may have the same name the next time."""
    monkeypatch.setattr(content, "_OWN", ("numpy", "builtins", "collections", "functools"))
    run_scenario(scenario())
    run_scenario(scenario())
    assert len(skips) == 2


def test_what_takes_much_memory_is_not_remembered(skips: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skip_memo, "_MOST_NUMBERS", 1000)
    run_scenario(scenario())
    run_scenario(scenario())
    assert len(skips) == 2
