"""Executors: which one a name means, and the same rows from each."""

import inspect
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest
from dask_cluster import DEADLY_SEED, dask_cluster, deadly_run
from joblib.externals.loky import process_executor
from plugin import LOADER, none_left  # noqa: F401
from tiny import seeded

from kvferry.analysis.code_version import code_version
from kvferry.analysis.executors import machines
from kvferry.analysis.executors.choice import InProcess, executor_for
from kvferry.analysis.executors.cores import Cores, _batches
from kvferry.analysis.executors.executor import DIED
from kvferry.analysis.executors.machines import Machines
from kvferry.analysis.point import Point, Work
from kvferry.analysis.sweep import run_points
from kvferry.pipelines.plugins import Plugin, drop, use, used
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario, scenario_hash
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario

BASE = seeded(0)[0]


def table(folder: Path) -> bytes:
    return (folder / "points.parquet").read_bytes()


@pytest.mark.parametrize(
    ("name", "workers", "kind"),
    [
        (None, None, Cores),
        (None, 1, InProcess),
        (None, 3, Cores),
        ("cores", 1, Cores),
        ("in-process", None, InProcess),
        ("tcp://127.0.0.1:8786", None, Machines),
        ("tls://[::1]:8786", None, Machines),
    ],
)
def test_the_executor_that_a_name_means(name: str | None, workers: int | None, kind: type) -> None:
    assert isinstance(executor_for(name, workers), kind)


@pytest.mark.parametrize(
    ("name", "workers", "message"),
    [
        ("core", None, "--executor 'core': is none of in-process, cores, and no address as tcp://HOST:PORT"),
        ("http://x:80", None, "is none of"),
        ("tcp://x", None, "is none of"),
        ("in-process", 2, "--jobs 2: in-process runs one point after the other"),
        ("tcp://x:80", 2, "--jobs 2: a scheduler has workers of its own"),
    ],
)
def test_a_name_that_means_none(name: str, workers: int | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        executor_for(name, workers)
    assert message in str(error.value)


def test_a_point_is_text_that_makes_the_same_scenario() -> None:
    for scenario in (BASE, load_scenario("quickstart"), load_scenario("kvswap/live")):
        point = Point.of(scenario)
        assert point.scenario() == scenario
        assert point.key == scenario_hash(point.scenario())


def test_a_worker_with_another_kvferry_is_refused() -> None:
    with pytest.raises(KvferryError, match="a worker has KVFerry .* and this process 0.0.1.old"):
        Work(_nothing, "0.0.1+old").elsewhere(Point.of(BASE))


def test_a_file_with_another_content_where_the_worker_is(tmp_path: Path) -> None:
    from kvferry.analysis.code_version import code_version

    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,bytes_per_s\n0,1e6\n1,2e6\n")
    point = Point.of(load_scenario("quickstart", [f"link={{trace: {trace}}}"]))
    work = Work(_nothing, code_version())
    assert work.elsewhere(point)["outcome"] == "done"
    trace.write_text("time_s,bytes_per_s\n0,1e6\n1,3e6\n")
    assert work.elsewhere(point)["why"] == "a file that the scenario names has another content where the worker is"
    trace.unlink()
    assert str(work.elsewhere(point)["why"]).startswith("the worker cannot read the scenario: ")


def test_points_are_taken_only_as_there_is_room() -> None:
    taken: list[int] = []

    def points() -> Iterator[Point]:
        for seed, scenario in enumerate(seeded(*range(50))):
            taken.append(seed)
            yield Point.of(scenario)

    rows = Cores(2).rows(points(), Work(_nothing, "1"))
    next(rows)
    assert len(taken) <= 6
    rows.close()


def _nothing(scenario: Scenario) -> Run:
    return Run(outcome="done", duration_s=float(scenario.seed))


def test_points_of_one_kin_go_to_one_process_and_others_wait_for_none() -> None:
    points = [Point(str(n), "", kin=kin) for n, kin in enumerate(["", "", *["a"] * 10, "b", "", "b"])]
    taken = list[str]()

    def each() -> Iterator[Point]:
        for point in points:
            taken.append(point.key)
            yield point

    batches = _batches(each())
    assert [point.key for point in next(batches)] == taken == ["0"]
    left = [[int(point.key) for point in batch] for batch in batches]
    assert left == [[1], [*range(2, 10)], [10, 11], [12], [13], [14]]


def test_of_points_together_the_one_that_ends_its_process_alone_fails(tmp_path: Path) -> None:
    points = seeded(*range(DEADLY_SEED + 3))
    kin = ["same"] * len(points)
    frame = run_points(points, tmp_path, run=deadly_run, executor=executor_for("cores", 2), kin=kin)
    failed = frame[frame["outcome"] == "failed"]
    assert failed[["seed", "why"]].values.tolist() == [[DEADLY_SEED, DIED]]
    assert len(frame) == len(points)


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kvferry.analysis.executors.machines._PATIENCE_S", 0.2)
    with pytest.raises(KvferryError, match="no scheduler answers at tcp://127.0.0.1:9"):
        run_points(seeded(1), tmp_path, executor=executor_for("tcp://127.0.0.1:9"))


def test_the_same_bytes_from_every_executor_also_when_a_worker_is_killed(tmp_path: Path) -> None:
    points = seeded(*range(60))
    run_points(points, tmp_path / "here", executor=executor_for("in-process"))
    run_points(points, tmp_path / "cores", executor=executor_for("cores", 2))
    with dask_cluster(tmp_path, 2) as cluster:

        def kill_one(done: int, of: int) -> None:
            if done == 20:
                os.killpg(cluster.workers[0].pid, signal.SIGKILL)

        frame = run_points(points, tmp_path / "machines", progress=kill_one, executor=executor_for(cluster.address))
        assert cluster.workers[0].wait(10) == -signal.SIGKILL
        assert cluster.workers[1].poll() is None
        assert frame["outcome"].tolist() == ["done"] * 60
    assert table(tmp_path / "here") == table(tmp_path / "cores") == table(tmp_path / "machines")


@pytest.mark.long
def test_a_point_that_every_worker_dies_of_is_a_failed_point(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 1) as cluster:
        # Nannies start a worker again; the scheduler gives up on a task after three of them.
        cluster.start_worker("--nanny")
        cluster.start_worker("--nanny")
        frame = run_points(
            seeded(*range(12)), tmp_path / "data", run=deadly_run, executor=executor_for(cluster.address)
        )
    failed = frame[frame["outcome"] == "failed"]
    assert failed[["seed", "why"]].values.tolist() == [[DEADLY_SEED, DIED]]
    assert sorted(frame["outcome"]) == ["done"] * 11 + ["failed"]


def test_a_worker_that_is_replaced_for_its_memory_is_not_told_of(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """loky warns of it from a thread of its own, which would write into a command's output."""
    run_points(seeded(0), tmp_path / "data", executor=Cores(1))
    told = "A worker stopped while some jobs were given"
    assert told in inspect.getsource(process_executor)
    warnings.warn(
        f"{told} to the executor. This can be caused by a too short worker timeout or by a memory leak.", stacklevel=1
    )
    assert not recwarn.list


@pytest.mark.long
def test_a_scheduler_that_is_killed_ends_the_sweep_and_keeps_what_is_done(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 1) as cluster:

        def kill(done: int, of: int) -> None:
            if done == 5:
                os.killpg(cluster.scheduler.pid, signal.SIGKILL)

        with pytest.raises(KvferryError, match="the scheduler at .* is gone; what is done is kept"):
            run_points(seeded(*range(40)), tmp_path / "data", progress=kill, executor=executor_for(cluster.address))
    run_points(seeded(*range(40)), tmp_path / "data", 1)
    run_points(seeded(*range(40)), tmp_path / "whole", 1)
    assert table(tmp_path / "data") == table(tmp_path / "whole")


@pytest.mark.long
def test_plugins_of_many_sweeps_on_the_same_workers(tmp_path: Path) -> None:
    """Each sweep has its own policies and no other's, though the workers stay; the file is nowhere but here."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, slow in ((ours, "StreamOnly"), (theirs, "LocalPrefill")):
        folder.mkdir()
        (folder / "mine.py").write_text(LOADER.replace("StreamOnly", slow))
    asked = [
        ("first", ours, "mine"),
        ("without", None, "stream-only"),
        ("same-name", theirs, "mine"),
        ("again", ours, "mine"),
    ]
    tables = {}
    with dask_cluster(tmp_path, 2) as cluster:
        for name, folder, system in asked:
            for plugin in used():
                drop(plugin)
            if folder is not None:
                use(folder / "mine.py")
            points = [point.model_copy(update={"system": system}) for point in seeded(*range(8))]
            for where, executor in (("here", "in-process"), ("machines", cluster.address)):
                frame = run_points(points, tmp_path / name / where, executor=executor_for(executor))
                assert frame["outcome"].tolist() == ["done"] * 8
            tables[name] = table(tmp_path / name / "here")
            assert table(tmp_path / name / "machines") == tables[name]
        changed = Plugin("/elsewhere/mine.py", "0" * 64, LOADER.encode(), "mine")
        work = Work(run_scenario, code_version(), (changed,))
        with (
            executor_for(cluster.address) as workers,
            pytest.raises(InputError, match="mine: its text came with the digest of another; nothing of it was run"),
        ):
            list(workers.rows([Point.of(points[0])], work))
    assert tables["first"] == tables["again"] != tables["same-name"]


@pytest.mark.long
def test_a_sweep_whose_last_worker_is_gone_ends_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask_cluster(tmp_path, 1) as cluster:

        def kill(done: int, of: int) -> None:
            if done == 5:
                os.killpg(cluster.workers[0].pid, signal.SIGKILL)
                monkeypatch.setattr(machines, "_PATIENCE_S", 1.0)

        with pytest.raises(KvferryError, match="has had no worker for 1 s; what is done is kept: go on later"):
            run_points(seeded(*range(40)), tmp_path / "data", progress=kill, executor=executor_for(cluster.address))
    run_points(seeded(*range(40)), tmp_path / "data", 1)
    run_points(seeded(*range(40)), tmp_path / "whole", 1)
    assert table(tmp_path / "data") == table(tmp_path / "whole")


def test_what_looks_at_the_clock_ends_points_that_are_under_way() -> None:
    looked: list[int] = []

    def look() -> None:
        looked.append(1)
        if len(looked) > 1:
            raise TimeoutError

    rows = Cores(2, look)._until_done(iter([[1e6]]), {}, sleep)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        next(rows)


def test_ctrl_c_does_not_reach_workers_that_still_start() -> None:
    """A terminal sends it to all processes: what still imports would show a stack trace."""
    program = """
import os
from kvferry.analysis.executors.cores import Cores, _submitted
executor = Cores(2)._processes()
_submitted(executor, len, "two", {}).result
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
        command = open(f"/proc/{pid}/cmdline").read()
    except OSError:
        continue
    if status["PPid"].strip() == str(os.getpid()) and "popen_loky" in command:
        print((int(status["SigBlk"], 16) | int(status["SigIgn"], 16)) >> 1 & 1)
executor.shutdown(kill_workers=True)
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("the system does not show which signals a process blocks")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "1"], done.stderr
