"""What the command does, Python does: a function for each command, and the same figures from both."""

import json
from pathlib import Path

import pytest
from command import Call
from tiny import DECODING, tiny

import kvferry
from kvferry.cli import main

# They are read at a terminal (Python has the tables that they print), or serve until they are ended.
TERMINAL = {"scenarios", "systems", "devices", "models", "runtimes", "schema", "kv_file", "serve", "serve_cloud"}


pytestmark = pytest.mark.usefixtures("small_here")


def test_each_command_with_a_result_has_a_function() -> None:
    commands = {one.__name__ for group in main._COMMANDS.values() for one in group}
    assert commands - TERMINAL <= set(kvferry.__all__)
    assert not TERMINAL & set(kvferry.__all__)


def test_schedule_is_the_commands(call: Call) -> None:
    found = kvferry.schedule("small.yaml", {"workload.context": "1Ki"}, solver="highs")
    code, out, _ = call("schedule", "small.yaml", "--set", "workload.context=1Ki", "--solver", "highs", "--json")
    assert code == 0
    timeless = [[{**row, "solve_s": 0} for row in one["schedules"]] for one in (json.loads(out), found.envelope)]
    assert timeless[0] == timeless[1]
    assert json.loads(out)["provenance"] == found.envelope["provenance"]
    assert found.table.index.tolist() == [row["schedule"] for row in timeless[0]]
    assert {"chain", "greedy"} < set(found.table.index)
    assert any("highs" in name for name in found.table.index)
    assert (found.table["bound_s"] <= found.table["completion_s"] * (1 + 1e-9)).all()
    assert "greedy" in found._repr_html_()
    with pytest.raises(kvferry.InputError, match="kvferry schedule works on context-reuse"):
        kvferry.schedule(tiny(DECODING))


def test_tune_is_the_commands(call: Call) -> None:
    where = ("kvswap/throughput", {"workload.batch": 1, "workload.context": "8Ki"})
    found = kvferry.tune(*where, least_context="8Ki", kv_memory="60 MiB")
    words = ("--set", "workload.batch=1", "--set", "workload.context=8Ki")
    code, out, _ = call(
        "tune", "kvswap/throughput", *words, "--least-context", "8Ki", "--kv-memory", "60 MiB", "--json"
    )
    assert (code, out) == (0, found.to_json())
    assert found.table.index.tolist() == [(1, 8192)]
    assert found.table["memory_bytes"].iloc[0] <= 60 * 2**20
    assert kvferry.tune(*where, least_context=8192, kv_memory=60 * 2**20).to_json() == found.to_json()
    assert kvferry.load("kvswap/throughput", {"policies.tuned": found.write("tuned.json")})
    with pytest.raises(kvferry.InputError, match="^kv_memory: '60' has no unit"):
        kvferry.tune(*where, kv_memory="60")
    with pytest.raises(kvferry.InputError, match="^most_group: 0: must be at least 1\nrelaxation: 2.0"):
        kvferry.tune(*where, most_group=0, relaxation=2.0)
    code, _, err = call("tune", "kvswap/throughput", *words, "--most-group", "0", "--relaxation", "2")
    lines = ["kvferry: --most-group: 0: must be at least 1", "kvferry: --relaxation: 2.0: must be at most 1"]
    assert (code, err.splitlines()) == (2, lines)


def test_reproduce_gives_frames_and_what_the_command_prints(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    from kvferry.analysis import reproduce as module

    claim = {"id": "S1", "paper_low": 1.3, "paper_high": 1.6, "verdict": "hit", "why": "", "seeds": 1, "fitted": False}
    claim |= {"ours": 1.4, "ours_low": 1.4, "ours_high": 1.4}

    def stand_in(name: str, output: Path | None, **more: object) -> dict[str, object]:
        return {"paper": name, "claims": [claim], "cells": [], "tables": [], "folder": str(output)}

    monkeypatch.setattr(module, "reproduce_paper", stand_in)
    seen: list[str] = []
    found = kvferry.reproduce("all", output="out", each=lambda name, report: seen.append(name))
    assert seen == list(found.reports) and len(seen) == 6
    assert found.reports["sparkv"]["folder"] == str(Path("out/sparkv"))
    assert found.claims[["of", "id", "verdict"]].iloc[0].tolist() == [seen[0], "S1", "hit"]
    assert repr(found).endswith(": 6 hit")
    code, out, _ = call("reproduce", "all", "--output", "out", "--json")
    assert (code, json.loads(out)) == (0, found.reports)
    assert kvferry.reproduce("sparkv", output="out").reports["sparkv"]["folder"] == "out"


def test_report_writes_a_page() -> None:
    pytest.importorskip("plotly")
    kvferry.run("small.yaml").write("results", plots=False)
    page = kvferry.report("results", "page.html")
    assert page == Path("page.html")
    assert "stream-only" in page.read_text() or "sparkv" in page.read_text()
    with pytest.raises(kvferry.InputError):
        kvferry.report(["nothing-here"])


@pytest.mark.torch
def test_encode_is_the_commands(call: Call) -> None:
    from tiny import LIVE

    Path("live.yaml").write_text(json.dumps(LIVE["context-reuse"]))
    seen: list[Path] = []
    paths = kvferry.encode("live.yaml", "stores", each=seen.append)
    assert seen == paths and all(path.exists() for path in paths)
    code, out, _ = call("encode", "live.yaml", "--output", "stores")
    assert (code, out.split()) == (0, [str(path) for path in paths])
    with pytest.raises(kvferry.InputError, match="^systems: "):
        kvferry.encode("live.yaml", "stores", ["nonsense"])
    code, _, err = call("encode", "live.yaml", "--output", "stores", "--systems", "nonsense")
    assert code == 2 and "--systems: " in err
