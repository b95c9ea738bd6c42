"""How fast points go through a sweep: what the machinery costs per point, and how busy it keeps the cores."""

import sys
import tempfile
from pathlib import Path
from time import perf_counter

import pandas as pd
from joblib import cpu_count

from kvferry.analysis.sweep import run_points
from kvferry.pipelines.record import Run
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

BASE = {
    "name": "small",
    "system": "ferry",
    "device": "rtx-5080-laptop",
    "model": "llama-3.1-8b",
    "link": {"rate": "640 Mbit/s", "rtt": "4 ms"},
    "workload": {"kind": "context-reuse", "context": "10Ki"},
}


def nothing(scenario: Scenario) -> Run:
    return Run(outcome="done", duration_s=float(scenario.seed))


def main(n_real: int) -> None:
    base = load_scenario(BASE)
    with tempfile.TemporaryDirectory() as name:
        folder, workers = Path(name), cpu_count()
        run_points([base], folder / "warm-up-1", 1)
        run_points([base.model_copy(update={"seed": n}) for n in range(4)], folder / "warm-up-2", workers)

        points = [base.model_copy(update={"seed": n}) for n in range(10_000)]
        for n_workers in dict.fromkeys((1, workers)):
            began_s = perf_counter()
            run_points(points, folder / f"nothing-{n_workers}", n_workers, run=nothing)
            took_s = perf_counter() - began_s
            print(f"{len(points):,} empty points, {n_workers} workers: {1e3 * took_s / len(points):.2f} ms each")
        began_s = perf_counter()
        run_points(points, folder / f"nothing-{workers}", workers, run=nothing)
        print(f"the same again, nothing missing: {1e3 * (perf_counter() - began_s) / len(points):.3f} ms each")

        began_s = perf_counter()
        run_points(points[:n_real], folder / "real", workers)
        took_s = perf_counter() - began_s
        busy_s = pd.read_parquet(folder / "real" / "timings.parquet")["measured.wall_s"].sum()
        print(
            f"{n_real} requests over 10Ki tokens, {workers} workers: {n_real / took_s:.1f} points/s, "
            f"{busy_s / (workers * took_s):.0%} of the cores' time inside points"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
