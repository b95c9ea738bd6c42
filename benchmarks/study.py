"""A whole study, from its file to its table, beside nothing but its runs on as many cores: time, speed-up and memory.

STUDY_POINTS=10000 python -m benchmarks study       # a quarter of an hour on a quiet machine; 300 points without it
"""

import json
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

from joblib import cpu_count

from benchmarks.row import Row, higher, lower
from kvferry.analysis.study import load_study
from kvferry.analysis.sweep import run_points
from kvferry.pipelines.run import run_scenario

# Some 50 ms of simulation each.
BASE = {
    "name": "small",
    "system": "ferry",
    "device": "rtx-5080-laptop",
    "model": "llama-3.1-8b",
    "link": {"rate": "640 Mbit/s", "rtt": "4 ms"},
    "workload": {"kind": "context-reuse", "context": "20Ki"},
}
# How often memory is looked at, and from which share of the points on it should be flat.
_LOOKS, _WARM_SHARE = 50, 0.25


def rows() -> Iterator[Row]:
    n_points = int(os.environ.get("STUDY_POINTS", "300"))
    cores = min(2, cpu_count())
    with tempfile.TemporaryDirectory() as name:
        study = Path(name, "study.yaml")
        study.write_text(json.dumps({"base": BASE, "seeds": n_points}))
        pure_s = _pure_s(study, cores)
        yield higher(f"nothing but the runs, {cores} cores", n_points / pure_s, "points/s")
        memory: list[tuple[int, float, float]] = []
        many_s = _swept_s(study, Path(name, "many"), cores, memory)
        yield higher(f"the study, {cores} cores", n_points / many_s, "points/s", n_points / pure_s)
        yield lower("its time over that of the runs, minus 1", many_s / pure_s - 1, "share", 0.05)
        one_s = _swept_s(study, Path(name, "one"), 1, [])
        yield higher(f"faster than on one core, {cores} cores", one_s / many_s, "times", 0.95 * cores)
        warm = [look for look in memory if look[0] >= _WARM_SHARE * n_points]
        for which, whose in ((1, "the command"), (2, "its workers")):
            yield lower(f"memory of {whose}, at most", max(look[which] for look in memory), "MiB")
            grown = max(look[which] for look in warm) - warm[0][which]
            yield lower(f"grown from {_WARM_SHARE:.0%} of the points on, {whose}", grown, "MiB")
        assert (Path(name, "one", "points.parquet").read_bytes()) == (Path(name, "many", "points.parquet").read_bytes())


def _swept_s(study: Path, folder: Path, workers: int, memory: list[tuple[int, float, float]]) -> float:
    """Seconds from the study's file to its table, without pictures; appends points done, and MiB of this process and of
    its children together."""

    def look(done: int, of: int) -> None:
        if done % max(1, of // _LOOKS) == 0:
            memory.append((done, _resident_mib(os.getpid()), sum(map(_resident_mib, _children()))))

    began_s = perf_counter()
    run_points(load_study(str(study)).points, folder, workers, look)
    return perf_counter() - began_s


def _pure_s(study: Path, cores: int) -> float:
    """Seconds that bare processes take for the runs alone, each for every `cores`-th point."""
    fork = get_context("spawn")
    ends, processes = [], []
    for n in range(cores):
        own, theirs = fork.Pipe()
        processes.append(fork.Process(target=_run_share, args=(str(study), n, cores, theirs)))
        processes[-1].start()
        ends.append(own)
    for end in ends:
        end.recv()  # the study is read, the first run is behind it
    began_s = perf_counter()
    for end in ends:
        end.send(None)
    for end in ends:
        end.recv()
    took_s = perf_counter() - began_s
    for process in processes:
        process.join()
    return took_s


def _run_share(study: str, first: int, cores: int, end: Connection) -> None:
    points = load_study(study).points[first::cores]
    run_scenario(points[0])
    end.send(None)
    end.recv()
    for point in points:
        run_scenario(point)
    end.send(None)


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
