"""Fit the A800's profile on half of the throughput cells that SpeContext prints (Tab. 3), and cross-validate.

python fits/specontext.py cells              # simulates every cell with the profile as it is
python fits/specontext.py fit [--rounds 2]   # prints the fitted numbers and every cell
python fits/specontext.py leave-out          # fits without some workloads or methods, errors on those left out; by
                                             # method they are kept in analysis/papers/specontext/left_out.csv

Free are numbers of the device, see FREE, and none of a system. The fit is on the workloads FITTED; the others are
predictions. Steps are priced without events (pipelines/decoding/delays.py); after each round the cells are simulated,
and the ratio of both corrects the next round.
"""

import argparse
import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rounds import Numbers, corrected, found, simulate, write_left_out

from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.scenarios.loader import load_runtime, load_scenario
from kvferry.specs.device import DeviceSpec
from kvferry.specs.scenario import Scenario

PRINTED = Path(__file__).resolve().parents[1] / "analysis/papers/specontext/throughput.csv"
SYSTEMS = {
    "eager": "full-eager",
    "flash_attention": "full-flash",
    "flashinfer": "full-flashinfer",
    "shadowkv": "shadowkv",
    "specontext": "specontext",
}
Workload = tuple[int, int]
FITTED: tuple[Workload, ...] = ((2048, 16384), (32768, 2048))
# Name, where the search begins, and the bounds that keep a number physical.
FREE: dict[str, tuple[float, float, float]] = {
    "decode_attention": (0.76, 0.5, 0.95),
    "gather": (0.5, 0.2, 0.95),
    "sequence_s": (6e-4, 1e-5, 2e-3),
    "unexplained_score_s": (3e-9, 2e-10, 2e-8),
}
BOUNDS = {name: (low, high) for name, (_, low, high) in FREE.items()}


@dataclass(frozen=True)
class Cell:
    method: str
    workload: Workload
    batch: int
    printed: float

    @property
    def system(self) -> str:
        return SYSTEMS[self.method]

    @property
    def fitted(self) -> bool:
        return self.workload in FITTED

    def __str__(self) -> str:
        return f"{self.method:16s} [{self.workload[0]:6d}, {self.workload[1]:6d}] {self.batch:3d}"


def cells() -> list[Cell]:
    """The ones that did not run out of memory."""
    with PRINTED.open() as file:
        return [
            Cell(
                row["method"], (int(row["input"]), int(row["output"])), int(row["requests"]), float(row["tokens_per_s"])
            )
            for row in csv.DictReader(file)
            if row["tokens_per_s"] != "OOM"
        ]


def scenario_of(cell: Cell, numbers: Numbers | None = None) -> Scenario:
    settings = {
        "system": cell.system,
        "workload.input": cell.workload[0],
        "workload.output": cell.workload[1],
        "workload.batch": cell.batch,
    }
    scenario = load_scenario("specontext/throughput", [f"{key}={value}" for key, value in settings.items()])
    if numbers is None:
        return scenario
    return scenario.model_copy(update={"device": device_with(scenario.device, numbers)})


def device_with(device: DeviceSpec, numbers: Numbers) -> DeviceSpec:
    """The device with other numbers."""
    gpu = device.processors["gpu"]
    efficiency = {**gpu.efficiency, **{name: numbers[name] for name in numbers if name in gpu.efficiency}}
    # Scoring streams keys as attention streams KV, and one query's attention does, split or not: measured on an H100
    # (docs/validation/live.md). The table alone could not tell a slow one from slow copies.
    for kernel in ("scoring", "unsplit_attention"):
        efficiency[kernel] = numbers["decode_attention"]
    # Not fitted; with it the device says itself what software takes, and no runtime is laid over it.
    launches = {"eager_layer_s": load_runtime("specontext-prototype").layer_s}
    changed = launches | {name: numbers[name] for name in ("sequence_s", "unexplained_score_s")}
    gpu = gpu.model_copy(update={"efficiency": efficiency, **changed})
    return device.model_copy(update={"processors": {**device.processors, "gpu": gpu}})


@dataclass(frozen=True)
class Known:
    """A cell with what does not change while its device's numbers are tried."""

    cell: Cell
    scenario: Scenario
    system: DecodeSystem
    plan: DecodePlan | None
    reuse_rate: float = 0.8
    # Simulated over predicted tokens/s.
    factor: float = 1.0

    @classmethod
    def of(cls, cell: Cell) -> "Known":
        scenario = scenario_of(cell)
        system = DECODE_SYSTEMS[cell.system].with_policies(scenario.policy_values)
        return cls(cell, scenario, system, None if system.roles.all_in_memory else _plan(scenario, system))


def _plan(scenario: Scenario, system: DecodeSystem) -> DecodePlan:
    """Where new tokens become blocks, that of a sequence of mean length."""
    workload = scenario.decode.workload
    if system.roles.upkeep.grows:
        middle = {"context": workload.context + workload.output // 2, "output": 1}
        scenario = scenario.model_copy(update={"workload": workload.model_copy(update=middle)})
    return plan_for(scenario, system)


def predicted(known: Sequence[Known], numbers: Numbers) -> np.ndarray:
    """Tokens/s of every cell without events."""
    first = known[0].scenario
    delays, rates = Delays(device_with(first.device, numbers), first.model), list[float]()
    for one in known:
        if one.plan is None:
            context, output = one.cell.workload
            kernel = one.system.roles.attention
            step_s = delays.queues.op_s(DecodeStep(one.cell.batch, context + output / 2, kernel=kernel))
        else:
            step_s = delays.step_s(one.plan, one.reuse_rate)
        rates.append(one.cell.batch / step_s * one.factor)
    return np.array(rates)


def fitted(known: Sequence[Known], start: Numbers) -> Numbers:
    printed = np.log([one.cell.printed for one in known])
    return found(lambda numbers: np.log(predicted(known, numbers)) - printed, start, BOUNDS)


def tell(cells: Sequence[Cell], ours: np.ndarray, numbers: Numbers | None = None) -> None:
    error = ours / np.array([cell.printed for cell in cells]) - 1
    for cell, value, of in zip(cells, ours, error, strict=True):
        print(f"{cell} {cell.printed:7.2f} {value:8.2f} {of:+.1%}{' fitted' if cell.fitted else ''}")
    for name, value in (numbers or {}).items():
        print(f"{name:18s} {value:.4g}")
    kept = np.array([cell.fitted for cell in cells])
    for what, part in (("all", kept | True), ("fitted", kept), ("left out", ~kept)):
        print(f"{what}: median {np.median(abs(error[part])):.1%}, largest {abs(error[part]).max():.1%}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("fit", "leave-out", "cells"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    everything = cells()

    def simulate_all(numbers: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
        return simulate([scenario_of(cell, numbers) for cell in everything], chosen.workers)

    if chosen.what == "cells":
        tell(everything, simulate_all(None)[0])
        return
    numbers = start = {name: begin for name, (begin, _, _) in FREE.items()}
    known = [Known.of(cell) for cell in everything]
    for _ in range(chosen.rounds):
        numbers = fitted([one for one in known if one.cell.fitted], numbers)
        tell(everything, predicted(known, numbers), numbers)
        ours, reuse = simulate_all(numbers)
        known = corrected(known, partial(predicted, numbers=numbers), ours, reuse)
        tell(everything, ours, numbers)
    if chosen.what == "leave-out":
        leave_out(known, start)


def leave_out(known: Sequence[Known], start: Numbers) -> None:
    """Fits on all cells but a part, and the errors on both. They begin at `start`, which has seen no cell."""
    rows: list[tuple[str, str, float]] = []
    for what, left_out in LEFT_OUT.items():
        kept = np.array([not left_out(one.cell) for one in known])
        numbers = fitted([one for one, keep in zip(known, kept, strict=True) if keep], start)
        times = predicted(known, numbers) / np.array([one.cell.printed for one in known])
        if what in SYSTEMS:
            cells_out = [(one.cell.workload, math.log(times[n])) for n, one in enumerate(known) if not kept[n]]
            rows += [(what, f"{context} to {output}", error) for (context, output), error in cells_out]
        error = abs(times - 1)
        there, elsewhere = error[~kept], error[kept]
        print(f"without {what}: {np.median(there):.1%}, {there.max():.1%} there; {np.median(elsewhere):.1%} elsewhere")
    write_left_out(PRINTED.with_name("left_out.csv"), known[0].scenario.device.name, rows)


LEFT_OUT: dict[str, Callable[[Cell], bool]] = {
    **{
        f"[{context}, {output}]": lambda cell, at=(context, output): cell.workload == at
        for context, output in ((2048, 16384), (2048, 32768), (16384, 2048), (32768, 2048))
    },
    **{method: lambda cell, method=method: cell.method == method for method in SYSTEMS},
}

if __name__ == "__main__":
    main()
