"""The benchmarks' harness: what is worse is said, what is kept comes back, every benchmark can be called."""

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parents[2]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HERE))
    from benchmarks import __main__ as main
    from benchmarks import kept, row

    return SimpleNamespace(main=main, kept=kept, row=row)


def test_what_is_worse_by_more_than_the_tolerance_is_said(harness: Any, tmp_path: Path) -> None:
    higher, lower, kept = harness.row.higher, harness.row.lower, harness.kept
    kept.save("x", [lower("time", 2.0, "s"), higher("rate", 80.0, "MB/s"), lower("gone", 1.0, "s")], "quiet", tmp_path)
    last = kept.load("x", tmp_path)
    assert (last["remark"], last["machine"]) == ("quiet", kept.machine())
    now = [lower("time", 2.4, "s"), higher("rate", 40.0, "MB/s"), lower("new", 9.0, "s")]
    assert list(kept.warnings(now, last, 0.25)) == [
        "rate: 40 MB/s, was 80: 100% worse",
        "gone: has a figure in figures/, and none now",
    ]
    assert next(iter(kept.warnings(now, last, 0.1))) == "time: 2.4 s, was 2: 20% worse"
    better = [lower("time", 0.5, "s"), higher("rate", 900.0, "MB/s"), lower("gone", 1.0, "s")]
    assert list(kept.warnings(better, last, 0.0)) == []
    assert kept.load("y", tmp_path) is None


def test_a_benchmark_is_shown_beside_its_ceiling_and_its_last_figure(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness.main, "load", lambda name: harness.kept.load(name, tmp_path))
    harness.kept.save("x", [harness.row.lower("time", 1.0, "s")], "", tmp_path)
    harness.main._run("x", lambda: iter([harness.row.lower("time", 3.0, "s", 2.0)]), 0.25, None)
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].split() == ["time", "3", "s", "2", "1.50", "1"]
    assert err == "  warning: time: 3 s, was 1: 200% worse\n"


def test_every_benchmark_is_listed_and_yields_rows(harness: Any) -> None:
    modules = {path.stem: ast.parse(path.read_text()) for path in (HERE / "benchmarks").glob("*.py")}
    with_rows = {
        name
        for name, module in modules.items()
        if any(isinstance(node, ast.FunctionDef) and node.name == "rows" for node in module.body)
    }
    assert with_rows == set(harness.main.NAMES) == set(modules) - {"__main__", "kept", "row"}
    assert {path.stem for path in (HERE / "benchmarks" / "figures").glob("*.json")} <= with_rows


def test_a_name_that_is_none() -> None:
    asked = [sys.executable, "-m", "benchmarks", "cost"]
    done = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no benchmark is called cost; known: traces, costs" in done.stderr


def test_a_fleet_says_what_its_users_wait_for_and_how_many_are_let_down(harness: Any) -> None:
    from benchmarks import assist

    quick = ("workload.duration=3 min", "machines.prefill.count=1", "machines.decode.count=1")
    found = {row.name.removeprefix("60 devices, "): row for row in assist.rows((60,), quick, (2, 30))}
    assert 0.5 < found["TTFT p50"].value <= found["TTFT p95"].value <= found["TTFT p99"].value
    assert 0 < found["longest gap"].value <= found["longest gap"].ceiling + 1e-9 < 0.3
    assert (found["requests let down"].value, found["requests let down"].unit) == (0, "%")
    # Seeds 1 and 2 of so few draw 10 and 11 requests.
    assert "2 times 30 devices in turn, 21 requests, processor time" in found


def test_a_ceiling_of_nothing_is_shown_without_a_share(harness: Any, capsys: pytest.CaptureFixture[str]) -> None:
    harness.main._run("x", lambda: iter([harness.row.lower("let down", 3.0, "%", 0)]), 0.25, None)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["let", "down", "3", "%", "0"]
