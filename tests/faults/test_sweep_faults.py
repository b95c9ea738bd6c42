"""Sweeps that are interrupted, killed, lose a process, or find their files damaged."""

import os
import runpy
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command import Call
from tiny import STREAMED, as_yaml, tiny

from kvferry.analysis.dataset import Dataset, read_points
from kvferry.analysis.sweep import run_points
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import BACKENDS
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import KvferryError

# A sweep over stand-ins for runs, which take NAP seconds each. A point in DEADLY takes its process down.
SCRIPT = """\
import os, sys, time
from pathlib import Path
from kvferry.analysis.sweep import run_points
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.loader import load_scenario

def run(scenario):
    time.sleep(float(os.environ["NAP"]))
    if str(scenario.seed) in os.environ["DEADLY"].split():
        os._exit(9)
    request = RequestRecord(request=0, arrival_s=0.0, loaded_s=0.5, first_token_s=float(scenario.seed))
    with open(os.environ["FINISHED"], "a") as finished:
        finished.write("x")
    return Run(outcome="done", requests=(request,))

if __name__ == "__main__":
    base = load_scenario({
        "name": "small", "system": "stream-only", "device": "rtx-5080-laptop", "model": "tiny",
        "link": {"rate": "80 Mbit/s"}, "workload": {"kind": "context-reuse", "context": "4Ki"},
    })
    points = [base.model_copy(update={"seed": seed}) for seed in range(int(sys.argv[2]))]
    print("ran", flush=True)
    frame = run_points(points, Path(sys.argv[1]), int(sys.argv[3]), run=run)
    print(frame[frame["outcome"] == "failed"][["seed", "why"]].to_dict("records"))
"""


def start(folder: Path, n_points: int, workers: int, nap_s: float = 0.0, deadly: str = "") -> subprocess.Popen[str]:
    script = folder.parent / "sweep_script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(n_points), str(workers)],
        env=dict(os.environ, NAP=str(nap_s), DEADLY=deadly, FINISHED=str(folder.parent / "finished")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whatever this process was started with: an ignored interrupt would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_rows(folder: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if sum(path.read_bytes().count(b"\n") for path in (folder / "parts").glob("*.rows")) >= 2:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("no rows appeared within a minute")


def ended(folder: Path, n_points: int) -> bytes:
    """Carries a sweep to its end, in this process; returns the bytes of its table."""
    script = folder.parent / "sweep_script.py"
    script.write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"NAP": "0", "DEADLY": "", "FINISHED": str(folder.parent / "finished")}.items():
            patch.setenv(name, value)
        points = [tiny(STREAMED, seed=seed) for seed in range(n_points)]
        run_points(points, folder, 1, run=runpy.run_path(str(script))["run"])
    return (folder / "points.parquet").read_bytes()


def processes_of(group: int) -> dict[int, str]:
    """Those that still run, and their commands."""
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,pgid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split(None, 3) for line in found.splitlines()]
    return {int(pid): command for pid, of, state, command in lines if int(of) == group and not state.startswith("Z")}


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path) -> None:
    process = start(tmp_path / "data", 12, 2, nap_s=0.5)
    wait_for_rows(tmp_path / "data", process)
    process.kill()
    process.wait()
    (tmp_path / "data" / ".x.parquet.abcd.partial").write_bytes(b"PAR1 half a fi")
    kept = read_points(tmp_path / "data")
    assert 2 <= len(kept) < 12
    assert kept["outcome"].tolist() == ["done"] * len(kept)
    # No worker is left that computes for a parent which is gone.
    try:
        for _ in range(100):
            if not processes_of(process.pid):
                break
            time.sleep(0.1)
        assert processes_of(process.pid) == {}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    whole = ended(tmp_path / "data", 12)
    assert sorted(os.listdir(tmp_path / "data")) == [".lock", "parts", "points.parquet", "timings.parquet"]
    assert os.listdir(tmp_path / "data" / "parts") == []
    assert whole == ended(tmp_path / "undisturbed", 12)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_killed_again_and_again_at_any_moment_it_ends_with_the_same_bytes(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    for _ in range(6):
        process = start(tmp_path / "data", 12, chance.choice([1, 2]), nap_s=0.2)
        try:
            process.communicate(timeout=chance.uniform(0.5, 6.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert set(read_points(tmp_path / "data")["outcome"]) <= {"done"}
    assert ended(tmp_path / "data", 12) == ended(tmp_path / "undisturbed", 12)


@pytest.mark.long
def test_killed_twenty_times_it_loses_what_was_under_way_and_nothing_else(tmp_path: Path) -> None:
    chance, kills, n_points = Random(20), 0, 600
    while kills < 20:
        workers = chance.choice([1, 2])
        finished = tmp_path / "finished"
        finished.write_text("")
        before = len(read_points(tmp_path / "data"))
        process = start(tmp_path / "data", n_points, workers, nap_s=0.05)
        assert process.stdout is not None
        process.stdout.readline()  # it has begun: what it imports takes seconds on a busy machine
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, 3.0))
        # The parent alone, or every process at once: workers whose parent is gone end by themselves.
        os.kill(process.pid, signal.SIGKILL)
        if chance.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        ran, kept = len(finished.read_text()), len(read_points(tmp_path / "data")) - before
        kills += 1
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        # Each worker has a point under way, and one that waits for it or has just been done.
        assert ran - 2 * workers <= kept <= ran + 2 * workers
        assert set(read_points(tmp_path / "data")["outcome"]) <= {"done"}
    assert 20 < len(read_points(tmp_path / "data")) < n_points
    assert ended(tmp_path / "data", n_points) == ended(tmp_path / "undisturbed", n_points)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_interrupted_it_keeps_what_is_done(tmp_path: Path, workers: int) -> None:
    process = start(tmp_path / "data", 30, workers, nap_s=0.5)
    wait_for_rows(tmp_path / "data", process)
    # Interrupts are the parent's business: it may get its own a moment later, or never.
    others = [pid for pid, command in processes_of(process.pid).items() if "LokyProcess" in command]
    assert len(others) == (workers if workers > 1 else 0)
    for pid in others:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.7)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=20)
    assert err.count("Traceback") == 1  # this script's own; the workers are silent
    assert err.rstrip().endswith("KeyboardInterrupt")
    # Brought into the table at once.
    assert os.listdir(tmp_path / "data" / "parts") == []
    assert 2 <= len(read_points(tmp_path / "data")) < 30


def test_a_point_that_takes_its_process_down_is_a_failed_point(tmp_path: Path) -> None:
    process = start(tmp_path / "data", 12, 2, nap_s=0.05, deadly="3 7")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    why = "its process died: killed, or out of memory"
    assert out.splitlines()[-1] == str([{"seed": 3, "why": why}, {"seed": 7, "why": why}])
    assert sorted(read_points(tmp_path / "data")["outcome"]) == ["done"] * 10 + ["failed"] * 2


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "points.parquet").write_bytes(b"PAR1 and not much more")
    with (
        Dataset(tmp_path) as data,
        pytest.raises(KvferryError, match="cannot read .*points.parquet.*removing this file costs only its points"),
    ):
        data.compact()


def result(key: str) -> dict[str, Any]:
    return {"key": key, "outcome": "done", "why": None, "name": "n", "seed": 1, "version": "v", "measured.wall_s": 0.1}


@pytest.mark.parametrize("name", ["points.parquet", "timings.parquet", "parts"])
def test_no_damage_to_a_file_is_a_fault_of_the_sweep(tmp_path: Path, name: str) -> None:
    with Dataset(tmp_path) as data:
        data.add(result("a"))
        data.compact()
        for n in range(5):
            data.add(result(f"b{n}") | {"measured.wall_s": 1.0})
    path = next((tmp_path / name).iterdir()) if name == "parts" else tmp_path / name
    whole = path.read_bytes()
    messages = []
    for place in range(0, len(whole), 101):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            try:
                read_points(tmp_path)
            except KvferryError as error:
                messages.append(str(error))
    # A journal that is too short was left by a killed process; in all else, every change is noticed.
    assert len(messages) > len(whole) / 101 * (0.9 if name == "parts" else 1)
    for message in messages:
        assert message.startswith(f"cannot read {path}: ")
        assert "removing this file costs only" in message
        assert message.isprintable()
    path.unlink()
    assert len(read_points(tmp_path)) == {"points.parquet": 5, "timings.parquet": 6, "parts": 1}[name]


@pytest.mark.parametrize(
    "row",
    ["no JSON", "[]", "7", "{}", '{"key": 1, "outcome": "done", "version": "v"}', '{"key": ' + "[" * 10_000]
    + ['{"key": "a", "outcome": "done", "version": "v", "x": [1]}', b"\xff"],
)
def test_a_part_whose_rows_are_none(tmp_path: Path, row: str | bytes) -> None:
    text = row if isinstance(row, bytes) else row.encode()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "x.rows").write_bytes(b"%08x %b\n" % (zlib.crc32(text), text))
    with pytest.raises(KvferryError, match="cannot read .*x.rows: .*costs only its points"):
        read_points(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvferryError, match="cannot write to .*file"), Dataset(tmp_path / "file"):
        pass


STUDY = (
    as_yaml({"base": STREAMED})
    + """\
axes:
  workload.context: [4Ki, 8Ki]
plots:
  - {kind: line, x: workload.context, y: ttft_s}
"""
)


def test_the_command(here: Path, call: Call) -> None:
    Path("study.yaml").write_text(STUDY)
    code, out, err = call("sweep", "study.yaml", "-j", "1")
    assert code == 0, err
    summary, device = out.splitlines()
    assert summary == "study: 2 points (2 done), 2 of them new"
    assert device.startswith("rtx-5080-laptop is not a measured device")
    assert err == "written to runs/study\nline-workload.context-ttft_s: each mark: 1 point, 1 seed\n"
    assert Path("runs/study/plots/line-workload.context-ttft_s.png").exists()
    code, out, err = call("sweep", "study.yaml", "--set", "system=stream")
    assert (code, out) == (2, "")
    assert err.startswith("kvferry: --set system=stream: system: unknown system 'stream'")


def test_the_command_lists_what_failed(here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_world(*_: Any, **__: Any) -> None:
        raise KvferryError("no machine today")

    Path("study.yaml").write_text(STUDY)
    monkeypatch.setitem(BACKENDS, "sim", no_world)
    code, out, err = call("sweep", "study.yaml", "-j", "1")
    assert code == 1
    assert out == "study: 2 points (2 failed), 2 of them new\n"
    lines = err.splitlines()
    assert lines[1].startswith("line-workload.context-ttft_s: not drawn: ")
    assert lines[2].startswith("failed: workload.context 4096: ")
    assert lines[3].startswith("failed: workload.context 8192: ")


def test_an_interrupted_run_is_no_result(tmp_path: Path) -> None:
    point = load_scenario("quickstart")
    with pytest.raises(KeyboardInterrupt):
        run_points([point], tmp_path, workers=1, run=lambda _: Run(outcome="interrupted"))
    assert read_points(tmp_path).empty


def test_recorded_chunks_that_do_not_fit_stop_a_sweep(here: Path, call: Call) -> None:
    Path("chunks.npz").write_bytes(b"not chunks")
    Path("study.yaml").write_text(STUDY.replace("context: 4Ki}", "context: 4Ki, chunks: ./chunks.npz}"))
    code, _, err = call("sweep", "study.yaml", "-j", "1")
    assert code == 2
    assert "workload.chunks: " in err
