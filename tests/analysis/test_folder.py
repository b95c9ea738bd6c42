"""The folder of a run: complete, repeatable, and careful with what was there before."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import joblib
import pyarrow as pa
import pytest

from kvferry.analysis import folder
from kvferry.analysis.envelope import Envelope, envelope_of
from kvferry.analysis.folder import (
    folder_name,
    requests_columns,
    run_pictures,
    spans_columns,
    write_comparison,
    write_drawn,
    write_run,
)
from kvferry.analysis.metrics import metrics_of
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.specs.errors import KvferryError

YAML = "name: quickstart\nlink: {rtt: 4 ms}  # µ\n"


def run(ttft_s: float = 2.0) -> Run:
    return Run(
        outcome="done",
        requests=(
            RequestRecord(
                request=0, arrival_s=0.0, loaded_s=1.5, first_token_s=ttft_s, units_computed=1, units_streamed=1
            ),
        ),
        spans=(
            Span("link", "fetch", 0.0, 1.0, 1e6, 0),
            Span("gpu", "Project", 0.0, 1.5),
            Span("gpu", "Prefill", 1.5, ttft_s, request=0),
        ),
        duration_s=ttft_s,
        energy_j={"gpu": 2.0},
        link_times_s=(0.0, 2.0),
        link_bytes_per_s=(1e6,),
        measured={"simulate_s": os.urandom(1)[0]},
    )


def envelope(of: Run) -> Envelope:
    return envelope_of(of, metrics_of(of, main_processor="gpu"), scenario="quickstart", system="ferry", seed=7)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    written = write_run(tmp_path / "out" / "demo", YAML, run(), envelope(run()))
    assert [str(path.relative_to(tmp_path / "out" / "demo")) for path in written] == [
        "scenario.yaml", "spans.parquet", "requests.parquet", "trace.json", "metrics.json",
        "plots/gantt.png", "plots/gantt.svg",
    ]  # fmt: skip
    found = contents(tmp_path / "out" / "demo")
    assert set(found) == {str(path.relative_to(tmp_path / "out" / "demo")) for path in written}
    assert found["scenario.yaml"].decode() == YAML
    assert json.loads(found["metrics.json"])["metrics"]["ttft_s"] == 2.0
    assert json.loads(found["trace.json"])["traceEvents"]
    assert found["plots/gantt.png"].startswith(b"\x89PNG")
    assert b"<svg" in found["plots/gantt.svg"]


def test_spans_come_back() -> None:
    table = pa.table(spans_columns(run()))
    back = tuple(Span(**row) for row in table.drop_columns(["step", "layer"]).to_pylist())
    assert back == run().spans
    assert pa.table(spans_columns(Run(outcome="done"))).num_rows == 0


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", YAML, run(), envelope(run()))
    write_run(tmp_path / "b", YAML, run(), envelope(run()))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_equal_bytes_in_another_process(tmp_path: Path) -> None:
    code = (
        "import importlib.util, pathlib, sys;"
        "spec = importlib.util.spec_from_file_location('made', sys.argv[1]);"
        "made = importlib.util.module_from_spec(spec);"
        "spec.loader.exec_module(made); run = made.run();"
        "made.write_run(pathlib.Path(sys.argv[2]), made.YAML, run, made.envelope(run));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    env = os.environ | {"PYTHONHASHSEED": "12345", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run([sys.executable, "-c", code, __file__, str(tmp_path / "b")], check=True, env=env)
    write_run(tmp_path / "a", YAML, run(), envelope(run()))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_own_files_are_replaced_and_others_left(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "mine.png").write_bytes(b"mine")
    (tmp_path / "metrics.json").write_text("old")
    (tmp_path / "notes.txt").write_text("keep")
    write_run(tmp_path, YAML, run(), envelope(run()))
    found = contents(tmp_path)
    assert found["plots/mine.png"] == b"mine"
    assert found["notes.txt"] == b"keep"
    assert json.loads(found["metrics.json"])["outcome"] == "done"


def test_a_run_without_work_still_tells_why(tmp_path: Path) -> None:
    failed = Run(outcome="out_of_memory", why="weights need 9 MiB, 2 MiB are free")
    written = write_run(tmp_path, YAML, failed, envelope(failed))
    assert [path.name for path in written] == [
        "scenario.yaml",
        "spans.parquet",
        "requests.parquet",
        "trace.json",
        "metrics.json",
    ]
    assert json.loads((tmp_path / "metrics.json").read_text())["why"].startswith("weights")


def test_systems_side_by_side(tmp_path: Path) -> None:
    runs = {"ferry": run(), "stream-only": run(3.0), "../../etc": Run(outcome="out_of_memory", why="too big")}
    write_comparison(
        tmp_path / "out", dict.fromkeys(runs, YAML), runs, {name: envelope(of) for name, of in runs.items()}
    )
    found = contents(tmp_path)
    own = {"scenario.yaml", "metrics.json", "spans.parquet", "requests.parquet", "trace.json"}
    pictures = {"plots/gantt.png", "plots/gantt.svg"}
    assert set(found) == (
        {f"out/{name}/{file}" for name in ("ferry", "stream-only") for file in own | pictures}
        | {f"out/-..-etc/{file}" for file in own}
        | {"out/comparison.json"}
        | {f"out/plots/{name}.{kind}" for name in ("paths", "bars") for kind in ("png", "svg")}
    )
    assert set(json.loads(found["out/comparison.json"])["systems"]) == set(runs)


@pytest.mark.parametrize("name", ["..", "a/b", "/etc", "", ".hidden", "naïve x", "-"])
def test_a_system_is_one_folder(name: str, tmp_path: Path) -> None:
    made = folder_name(name)
    assert made
    assert (tmp_path / made).resolve().parent == tmp_path.resolve()


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("I am a file")
    with pytest.raises(KvferryError, match="is a file"):
        write_run(tmp_path / "out", YAML, run(), envelope(run()))
    with pytest.raises(KvferryError, match="is a file"):
        write_run(tmp_path / "out" / "deeper", YAML, run(), envelope(run()))


def test_without_plots_none_are_drawn(tmp_path: Path) -> None:
    written = write_run(tmp_path, YAML, run(), envelope(run()), plots=False)
    assert not (tmp_path / "plots").exists()
    assert len(written) == 5


def test_pictures_of_several_processes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_workers", lambda pictures: 2)
    done: list[tuple[int, int]] = []
    (draw,) = run_pictures(tmp_path, run(), envelope(run())).values()
    draws = {tmp_path / str(n): draw for n in range(6)}
    write_drawn(draws, lambda n, of: done.append((n, of)))
    assert done == [(n, 6) for n in range(1, 7)]
    write_drawn({tmp_path / "alone": draw})
    assert {path.read_bytes() for path in tmp_path.glob("*.png")} == {(tmp_path / "alone.png").read_bytes()}


def test_requests_come_back() -> None:
    table = pa.table(requests_columns(run())).to_pylist()
    assert [(row["request"], row["ttft_s"], row["load_s"], row["tokens"], row["tpot_s"]) for row in table] == [
        (0, 2.0, 1.5, 1, None)
    ]
    bound = replace(run(), requests=(replace(run().requests[0], bound_s=1.0),))
    assert pa.table(requests_columns(bound))["bound_s"].to_pylist() == [1.0]
    assert pa.table(requests_columns(bound, bounded=False))["bound_s"].to_pylist() == [None]
    about = RequestRecord(request=0, arrival_s=1.0, began_s=1.5, context_tokens=7, source=2, conversation=0, turn=1)
    (row,) = pa.table(requests_columns(replace(run(), requests=(about,)))).to_pylist()
    assert [
        row[key] for key in ("context_tokens", "question_tokens", "source", "conversation", "turn", "queued_s")
    ] == [7, None, 2, 0, 1, 0.5]


def test_busy_cores_get_no_further_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.4, 0.0, 0.0))
    assert [folder._workers(pictures) for pictures in (1, 2, 6, 11, 90)] == [1, 1, 2, 3, 7]
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert folder._workers(90) == 1
