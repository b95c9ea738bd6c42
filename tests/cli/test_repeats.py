"""Several real runs of a scenario, by `run` and `compare`."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import SMALL, Call, result

from kvferry.pipelines.record import Run
from kvferry.specs.errors import KvferryError
from kvferry.specs.scenario import Scenario

REAL = ("--set", "backend=torch", "--runs", "3")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Iterator[Any]]:
    """What each system's runs come to, one after the other; "order" has the systems in the order they ran in."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    outcomes: dict[str, Any] = {"order": []}

    def run_scenario(scenario: Scenario, progress: Callable[[int, int], None], **_: Any) -> Run:
        outcomes["order"].append(scenario.system)
        outcome = next(outcomes[scenario.system])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setitem(sys.modules, "kvferry.pipelines.run", SimpleNamespace(run_scenario=run_scenario))
    return outcomes


def test_run_shows_medians_with_their_ranges(call: Call, asked: dict[str, Any]) -> None:
    asked["stream-only"] = iter([result(4.0), result(1.0), result(2.0)])
    code, out, _ = call("run", "small.yaml", *REAL, "-o", "kept")
    assert code == 0
    assert "stream-only, 3 runs" in out
    assert "1.00 s to 4.00 s" in out
    kept = json.loads(Path("kept/metrics.json").read_text())
    assert (kept["runs"], kept["metrics"]["ttft_s"], kept["ranges"]["ttft_s"]) == (3, 2.0, [1.0, 4.0])


def test_compare_runs_in_turns_and_marks_what_lies_inside_the_noise(call: Call, asked: dict[str, Any]) -> None:
    asked["stream-only"] = iter([result(2.0), result(2.2), result(2.6)])
    asked["local-prefill"] = iter([result(2.5), result(2.7), result(9.0)])
    code, out, _ = call("compare", "small.yaml", "--systems", "stream-only,local-prefill", *REAL)
    assert code == 0
    assert asked["order"] == ["stream-only", "local-prefill"] * 3
    assert "~ 1.23x" in out
    assert "2.50 s to 9.00 s" in out
    assert "medians of up to 3 runs" in out


@pytest.mark.parametrize(
    ("error", "why"), [(KvferryError("no more"), "no more"), (TypeError("not \x1b"), "TypeError: not \\x1b")]
)
def test_a_system_that_fails_keeps_its_finished_runs(
    call: Call, asked: dict[str, Any], error: Exception, why: str
) -> None:
    asked["stream-only"] = iter([result(2.0), result(2.2), result(2.6)])
    asked["local-prefill"] = iter([result(3.0), error])
    code, out, err = call("compare", "small.yaml", "--systems", "stream-only,local-prefill", *REAL, "--json")
    assert code == 1
    assert f"local-prefill: failed: {why}" in err
    systems = json.loads(out)["systems"]
    assert systems["stream-only"]["runs"] == 3
    assert systems["local-prefill"]["metrics"]["ttft_s"] == 3.0


@pytest.mark.parametrize("command", [("run", "small.yaml"), ("compare", "small.yaml", "--systems", "stream-only")])
def test_ctrl_c_keeps_the_runs_that_are_done(call: Call, asked: dict[str, Any], command: tuple[str, ...]) -> None:
    asked["stream-only"] = iter([result(2.0), result(3.0, outcome="interrupted")])
    code, out, err = call(*command, *REAL)
    assert code == 130
    assert "2.00 s" in out
    assert "interrupted; kept 1 of" in err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_modelled_world_is_not_run_twice(call: Call, asked: dict[str, Any], command: str) -> None:
    code, _, err = call(command, "small.yaml", "--runs", "2")
    assert code == 2
    assert "--runs 2: the modelled world gives the same every time" in err
    assert asked["order"] == []
