"""How late random loads are: devices, models, lengths, links, round trips, outages, background load.

    KVFERRY_TRACES=... python studies/random_loads.py [--loads 300] [--keep mine.csv] [--against before.csv] [--help]

Every system meets the same loads, one request each, through the pipeline that scenarios run; a load follows from its
number. Regret is a load's time over the clairvoyant lower bound, less 1. "One path" counts loads that are more than 5 %
later than by the better of stream-only and local-prefill. `--keep` writes every load's time, and `--against` counts
which became faster or slower since such a file was written.
"""

import argparse
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from regret_rows import percentiles, print_table

import kvferry
from kvferry.traces.catalogue import catalogue
from kvferry.traces.resolve import bundled

DEVICES = (
    "rtx-5080-laptop",
    "rtx-4060",
    "jetson-agx-orin-sparkv",
    "jetson-orin-nx-sparkv",
    "laptop-cpu",
    "apple-m3",
    "oneplus-12",
    "redmi-k80-pro",
)
# Their NPU takes 1.5 s to start, and so may a whole load.
PHONES = ("oneplus-12", "redmi-k80-pro")
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-1.5b", "qwen3-4b", "qwen2.5-7b")
SINGLE_PATHS = ("stream-only", "local-prefill")
# What a system is called here, what it is, and its policies.
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ferry": ("ferry", {}),
    "ferry-horizon": ("ferry-horizon", {}),
    "sparkv": ("sparkv", {}),
    "sparkv-last-first": ("sparkv-last-first", {}),
    "sparkv-overdue": ("sparkv-overdue", {}),
    "sparkv-overdue, last first": ("sparkv-overdue", {"policies.schedule": "greedy-last-first"}),
    "cachegen": ("cachegen", {}),
    **{name: (name, {}) for name in SINGLE_PATHS},
}
# As a share of the better single path's time: later than that is worse than not combining paths.
LATER = 0.05


@dataclass(frozen=True)
class Took:
    """How one system did one load."""

    load_s: float
    regret: float


def drawn(number: int) -> dict[str, Any]:
    """The settings of one load, the same for a number whatever else is asked for."""
    chance = Random(number)
    settings: dict[str, Any] = {
        "device": chance.choice(DEVICES),
        "model": chance.choice(MODELS),
        "workload.context": round(1000 * 50 ** chance.random()),
        "link.trace": chance.choice(LINKS),
        "link.scale": 0.1 * 320 ** chance.random(),
        "link.offset": f"{chance.uniform(0, 600)} s",
        "link.rtt": f"{200 ** chance.random()} ms",
        "seed": number,
    }
    if chance.random() < 1 / 4:
        start_s, lasts_s = 0.05 * 100 ** chance.random(), 0.2 * 50 ** chance.random()
        settings["link.outages"] = [{"start": f"{start_s} s", "duration": f"{lasts_s} s"}]
    if chance.random() < 1 / 3:
        settings["load"] = {"share": chance.uniform(0.1, 0.7)}
    return settings


# Names, not files: a load is the same wherever it is drawn.
LINKS = (*sorted(catalogue()), *(name for name in bundled() if not name.startswith("load-")))


def carried_out(number: int, names: list[str]) -> dict[str, Took] | None:
    """How each system did load `number`; None where the context does not fit into memory."""
    scenario = kvferry.load("quickstart", drawn(number))
    done = {}
    for name in names:
        system, policies = SYSTEMS[name]
        result = kvferry.run(scenario, policies, system=system)
        if result.outcome != "done":
            return None
        done[name] = Took(result.metrics["load_s"], result.metrics["regret"])
    return done


def _show(loads: Mapping[int, dict[str, Took]], names: list[str]) -> None:
    print(f"{'regret in %':28s} {'loads':>6s} {'p50':>8s} {'p90':>8s} {'p95':>8s} {'p99':>8s} {'worst':>8s} one path")
    for name in names:
        percent = 100 * np.array([took[name].regret for took in loads.values()])
        p50, p90, p95, p99 = np.percentile(percent, [50, 90, 95, 99])
        worst = max(loads, key=lambda number: loads[number][name].regret)
        figures = f"{len(loads):6d} {p50:8.2f} {p90:8.2f} {p95:8.2f} {p99:8.1f} {percent.max():8.1f}"
        print(f"{name:28s} {figures} {_worse_than_one_path(loads, name):8s}   worst: load {worst}", flush=True)


def _worse_than_one_path(loads: Mapping[int, dict[str, Took]], name: str) -> str:
    """How many loads are clearly later than by the better single path; nothing where these were not run."""
    if not all(set(SINGLE_PATHS) <= set(took) for took in loads.values()):
        return ""
    best_s = {number: min(took[single].load_s for single in SINGLE_PATHS) for number, took in loads.items()}
    return str(sum(took[name].load_s > (1 + LATER) * best_s[number] for number, took in loads.items()))


def _compare(loads: Mapping[int, dict[str, Took]], before: Path) -> None:
    with before.open(newline="") as file:
        was = {(int(row["load"]), row["system"]): float(row["load_s"]) for row in csv.DictReader(file)}
    for name in SYSTEMS:
        ratios = {
            number: took[name].load_s / was[number, name]
            for number, took in loads.items()
            if name in took and (number, name) in was
        }
        if not ratios:
            continue
        changed = {number: ratio for number, ratio in ratios.items() if abs(ratio - 1) > 1e-9}
        faster = sum(ratio < 1 for ratio in changed.values())
        ends = f", to {min(changed.values()):.3f} and {max(changed.values()):.3f} of the time" if changed else ""
        print(f"{name}: of {len(ratios)} loads {faster} faster, {len(changed) - faster} slower{ends}")
        for number in sorted(changed, key=changed.__getitem__, reverse=True)[:8]:
            print(f"    load {number}: {was[number, name]:.4f} to {loads[number][name].load_s:.4f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="the first load's number, its seed")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write every load's time")
    parser.add_argument("--against", type=Path, metavar="FILE", help="such a file of an earlier state")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()

    from joblib import Parallel, delayed

    numbers = range(asked.first, asked.first + asked.loads)
    done = Parallel(n_jobs=asked.jobs)(delayed(carried_out)(number, asked.systems) for number in numbers)
    loads = {number: took for number, took in zip(numbers, done, strict=True) if took is not None}
    print(f"{asked.loads - len(loads)} of {asked.loads} loads do not fit into memory")
    on_phones = {number for number in loads if drawn(number)["device"] in PHONES}
    print("\nall devices")
    _show(loads, asked.systems)
    print("\nwithout the two phones whose NPU takes 1.5 s to start")
    _show({number: took for number, took in loads.items() if number not in on_phones}, asked.systems)
    late = "median, p95, p99, worst, %"
    print_table(
        "all devices",
        {
            name: {
                late: percentiles([took[name].regret for took in loads.values()]),
                "one path": _worse_than_one_path(loads, name),
            }
            for name in asked.systems
        },
    )
    if asked.keep:
        with asked.keep.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["load", "system", "load_s", "regret"])
            rows.writerows(
                [number, name, one.load_s, one.regret] for number, took in loads.items() for name, one in took.items()
            )
    if asked.against:
        print(f"\nagainst {asked.against}")
        _compare(loads, asked.against)


if __name__ == "__main__":
    main()
