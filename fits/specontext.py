"""Fit the A800's profile on half of the throughput cells that SpeContext prints (Tab. 3), and cross-validate.

python fits/specontext.py cells              # simulates every cell with the profile as it is
python fits/specontext.py fit [--rounds 2]   # prints the fitted numbers and every cell
python fits/specontext.py leave-out          # fits without some workloads or methods, errors on those left out

Free are numbers of the device, see FREE, and none of a system. The fit is on the workloads FITTED; the others are
predictions. Steps are priced without events (pipelines/decoding/delays.py); after each round the cells are simulated,
and the ratio of both corrects the next round.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
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
    "unsplit_attention": (0.35, 0.1, 0.95),
    "eager_layer_s": (2e-4, 2e-5, 2e-3),
    "sequence_s": (6e-4, 1e-5, 2e-3),
    "topk_per_s": (3e8, 5e7, 5e9),
}
Numbers = dict[str, float]


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
    """Those that did not run out of memory."""
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
    # Scoring streams keys as attention streams KV.
    efficiency["scoring"] = numbers["decode_attention"]
    changed = {name: numbers[name] for name in ("eager_layer_s", "sequence_s", "topk_per_s")}
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
    delays, found = Delays(device_with(first.device, numbers), first.model), []
    for one in known:
        if one.plan is None:
            context, output = one.cell.workload
            step_s = delays.op_s(DecodeStep(one.cell.batch, context + output / 2, kernel=one.system.roles.attention))
        else:
            step_s = delays.step_s(one.plan, one.reuse_rate)
        found.append(one.cell.batch / step_s * one.factor)
    return np.array(found)


def simulated(scenario: Scenario) -> tuple[float, float]:
    run = run_scenario(scenario)
    figures = metrics_for(scenario, run)
    return figures.get("throughput_tokens_per_s", float("nan")), figures.get("reuse_rate", 0.0)


def simulate(cells: Sequence[Cell], numbers: Numbers | None, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens/s and reuse of every cell, by events."""
    rows = Parallel(n_jobs=workers)(delayed(simulated)(scenario_of(cell, numbers)) for cell in cells)
    throughput, reuse = zip(*rows, strict=True)
    return np.array(throughput), np.array(reuse)


def least(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Levenberg-Marquardt on squares, a step at most 0.3 of a logarithm."""
    damping, step, r = 1e-2, 1e-4, function(x)
    for _ in range(60):
        jacobian = np.stack([(function(x + step * unit) - r) / step for unit in np.eye(x.size)], axis=1)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ r
        before = float(r @ r)
        for _ in range(8):
            change = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), slope)
            there = np.clip(x + np.clip(change, -0.3, 0.3), low, high)
            r_there = function(there)
            if r_there @ r_there < before:
                break
            damping *= 4
        else:
            return x
        x, r, damping = there, r_there, max(damping / 5, 1e-7)
        if before - float(r @ r) < 1e-7 * before:
            break
    return x


def fitted(known: Sequence[Known], start: Numbers) -> Numbers:
    printed = np.log([one.cell.printed for one in known])
    low, high = (np.log([FREE[name][end] for name in start]) for end in (1, 2))

    def function(x: np.ndarray) -> np.ndarray:
        return np.log(predicted(known, dict(zip(start, np.exp(x), strict=True)))) - printed

    x = least(function, np.log([*start.values()]), low, high)
    return dict(zip(start, np.exp(x).tolist(), strict=True))


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
    if chosen.what == "cells":
        tell(everything, simulate(everything, None, chosen.workers)[0])
        return
    numbers = start = {name: begin for name, (begin, _, _) in FREE.items()}
    known = [Known.of(cell) for cell in everything]
    for _ in range(chosen.rounds):
        numbers = fitted([one for one in known if one.cell.fitted], numbers)
        tell(everything, predicted(known, numbers), numbers)
        ours, reuse = simulate(everything, numbers, chosen.workers)
        plain = [replace(one, reuse_rate=float(rate), factor=1.0) for one, rate in zip(known, reuse, strict=True)]
        factors = ours / predicted(plain, numbers)
        known = [replace(one, factor=float(factor)) for one, factor in zip(plain, factors, strict=True)]
        tell(everything, ours, numbers)
    if chosen.what == "leave-out":
        leave_out(known, start)


def leave_out(known: Sequence[Known], start: Numbers) -> None:
    """Fits on all cells but a part, and the errors on both. They begin at `start`, which has seen no cell."""
    for what, left_out in LEFT_OUT.items():
        kept = np.array([not left_out(one.cell) for one in known])
        found = fitted([one for one, keep in zip(known, kept, strict=True) if keep], start)
        error = abs(predicted(known, found) / np.array([one.cell.printed for one in known]) - 1)
        there, elsewhere = error[~kept], error[kept]
        print(f"without {what}: {np.median(there):.1%}, {there.max():.1%} there; {np.median(elsewhere):.1%} elsewhere")


LEFT_OUT: dict[str, Callable[[Cell], bool]] = {
    **{
        f"[{context}, {output}]": lambda cell, at=(context, output): cell.workload == at
        for context, output in ((2048, 16384), (2048, 32768), (16384, 2048), (32768, 2048))
    },
    **{method: lambda cell, method=method: cell.method == method for method in SYSTEMS},
}

if __name__ == "__main__":
    main()
