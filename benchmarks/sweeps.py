"""How fast points go through a sweep: what the machinery costs per point, and how busy it keeps the cores."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pandas as pd
from joblib import cpu_count

from benchmarks.row import Row, higher, lower
from benchmarks.study import BASE as POINT
from kvferry.analysis.sweep import run_points
from kvferry.pipelines.record import Run
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

N_REAL = 200
BASE = POINT | {"workload": {"kind": "context-reuse", "context": "10Ki"}}


def nothing(scenario: Scenario) -> Run:
    return Run(outcome="done", duration_s=float(scenario.seed))


def rows() -> Iterator[Row]:
    base = load_scenario(BASE)
    with tempfile.TemporaryDirectory() as name:
        folder, workers = Path(name), cpu_count()
        run_points([base], folder / "warm-up-1", 1)
        run_points([base.model_copy(update={"seed": n}) for n in range(4)], folder / "warm-up-2", workers)

        points = [base.model_copy(update={"seed": n}) for n in range(10_000)]
        for n_workers in dict.fromkeys((1, workers)):
            began_s = perf_counter()
            run_points(points, folder / f"nothing-{n_workers}", n_workers, run=nothing)
            each_ms = 1e3 * (perf_counter() - began_s) / len(points)
            yield lower(f"an empty point, {n_workers} workers", each_ms, "ms")
        began_s = perf_counter()
        run_points(points, folder / f"nothing-{workers}", workers, run=nothing)
        yield lower("a point that is there already", 1e3 * (perf_counter() - began_s) / len(points), "ms")

        began_s = perf_counter()
        run_points(points[:N_REAL], folder / "real", workers)
        took_s = perf_counter() - began_s
        busy_s = pd.read_parquet(folder / "real" / "timings.parquet")["measured.wall_s"].sum()
        yield higher(f"requests over 10Ki tokens, {workers} workers", N_REAL / took_s, "points/s")
        yield higher("of the cores' time inside points", busy_s / (workers * took_s), "share", 1.0)
