"""Fit the AGX Orin profile of KVSwap's prototype on the throughput cells that the paper prints, and cross-validate.

python fits/kvswap.py fit [--rounds 2]       # prints the fitted numbers and every cell
python fits/kvswap.py leave-out              # fits without some batches or methods, errors on those left out; by
                                             # method they are kept in analysis/papers/kvswap/left_out.csv

Free are numbers of the device, see FREE, and of its storage, see STORAGE; none of a system. The fit prices layers
without events (pipelines/decoding/delays.py); after each round the cells are simulated, and the ratio of both corrects
the next round.
"""

import argparse
import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rounds import Numbers, corrected, found, huber_scale, simulate, write_left_out

from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.device import ContentionSpec, DeviceSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec

PRINTED = Path(__file__).resolve().parents[1] / "analysis/papers/kvswap"
WITHOUT_REUSE = "KVSWAP without reuse"
SYSTEMS = {
    "FlexGen": "flexgen",
    "Loki/InfiniGen": "infinigen",
    "InfiniGen*": "infinigen-star",
    "InfiniGen*+ru": "infinigen-star-ru",
    "ShadowKV": "shadowkv",
    "KVSWAP": "kvswap",
    WITHOUT_REUSE: "kvswap",
    "vLLM": "vllm",
}
HALF_DIGIT = 0.05
# Of a reuse buffer, before the first simulation tells.
USUAL_REUSE = 0.77
# Name, where the search begins, and the bounds that keep a number physical.
FREE: dict[str, tuple[float, float, float]] = {
    "gemv": (0.82, 0.5, 1.0),
    "kernel_slowdown": (1.5, 1.0, 4.0),
    "slot_s": (1.7e-9, 1e-11, 1e-7),
    "slowdown": (1.85, 1.0, 4.0),
}
# Numbers of the storage that these cells determine: name, storage and key, where the search begins, and the bounds.
# KVSwap 2.3 is met without being asked for: a read of 512 B below 6 % of the peak takes at least 4.74 us on NVMe, of
# which 0.28 us are its bytes, and 34 us on eMMC.
STORAGE: dict[str, tuple[str, str, float, float, float]] = {
    "nvme_command_s": ("nvme", "queue.command_s", 4e-6, 1e-6, 3e-5),
    "nvme_partial_s": ("nvme", "queue.partial_s", 1e-6, 1e-8, 1e-4),
    "emmc_command_s": ("emmc", "queue.command_s", 32e-6, 1e-6, 2e-4),
    "emmc_covers_bytes": ("emmc", "map.covers_bytes", 1e9, 1e8, 2e10),
    "emmc_miss_s": ("emmc", "map.miss_s", 5e-6, 1e-7, 1e-4),
}
BOUNDS = {
    **{name: (low, high) for name, (_, low, high) in FREE.items()},
    **{name: (low, high) for name, (_, _, _, low, high) in STORAGE.items()},
}


@dataclass(frozen=True)
class Cell:
    disk: str
    method: str
    context: int
    batch: int
    printed: float

    @property
    def system(self) -> str:
        return SYSTEMS[self.method]


def cells() -> list[Cell]:
    """Tab. 4, and of Tab. 5 the column without reuse (32K, batch 8)."""
    with (PRINTED / "throughput.csv").open() as file:
        printed = [
            Cell(row["disk"], row["method"], int(row["context"]), int(row["batch"]), float(row["tokens_per_s"]))
            for row in csv.DictReader(file)
        ]
    with (PRINTED / "reuse.csv").open() as file:
        printed += [
            Cell(row["disk"], WITHOUT_REUSE, 32768, 8, float(row["tokens_per_s_without_reuse"]))
            for row in csv.DictReader(file)
        ]
    return printed


def scenario_of(cell: Cell, numbers: Numbers | None = None, decoded: int = 40) -> Scenario:
    storage = "emmc" if cell.disk == "eMMC" else "nvme"
    settings = {
        "system": cell.system,
        "device.storage": storage,
        "workload.context": cell.context,
        "workload.batch": cell.batch,
        "workload.decoded": decoded,
    }
    if cell.method == WITHOUT_REUSE:
        settings["policies.reuse"] = "false"
    elif cell.system in ("kvswap", "infinigen-star-ru"):
        # The paper's fill the budget.
        settings["policies.slots"] = "all"
    if cell.system in ("infinigen", "infinigen-star", "infinigen-star-ru", "shadowkv"):
        # Under the same budget: keys as wide as it holds.
        settings["policies.compression"] = "fit"
    scenario = load_scenario("kvswap/throughput", [f"{key}={value}" for key, value in settings.items()])
    if numbers is None:
        return scenario
    return scenario.model_copy(update={"device": device_with(scenario.device, numbers)})


def device_with(device: DeviceSpec, numbers: Numbers) -> DeviceSpec:
    """The device with other numbers."""
    gpu = device.processors["gpu"]
    # All three do nothing but stream memory.
    efficiency = {**gpu.efficiency, **dict.fromkeys(("gemv", "decode_attention", "gather"), numbers["gemv"])}
    # Bookkeeping per block was free as well, and came to nothing. What a layer takes at least is chosen on K17: these
    # cells, all of one model, say only that it is less.
    eager = {"eager_layer_s": 0.0, "eager_floor_s": 0.0, "eager_slowdown": numbers["kernel_slowdown"]}
    book = {"block_s": 0.0, "slot_s": numbers["slot_s"]}
    gpu = gpu.model_copy(update={"efficiency": efficiency, **eager, **book})
    slowdown = {"gpu": {"storage": numbers["slowdown"]}}
    changes: dict[str, object] = {"processors": {**device.processors, "gpu": gpu}}
    changes["contention"] = ContentionSpec(slowdown=slowdown)
    if device.storage is not None:
        changes["storage"] = storage_with(device.storage, numbers)
    return device.model_copy(update=changes)


def storage_with(storage: StorageSpec, numbers: Numbers) -> StorageSpec:
    """The storage with those of its numbers that `numbers` has."""
    for name, (whose, key, *_) in STORAGE.items():
        if whose == storage.name and name in numbers:
            part, key = key.split(".")
            changed = getattr(storage, part).model_copy(update={key: numbers[name]})
            storage = storage.model_copy(update={part: changed})
    return storage


@dataclass(frozen=True)
class Known:
    """A cell with what does not change while its device's numbers are tried."""

    cell: Cell
    scenario: Scenario
    plan: DecodePlan | None
    reuse_rate: float
    # Simulated over predicted tokens/s.
    factor: float = 1.0

    @classmethod
    def of(cls, cell: Cell, reuse_rate: float) -> "Known":
        scenario = scenario_of(cell)
        system = DECODE_SYSTEMS[cell.system].with_policies(scenario.policy_values)
        plan = None if cell.system == "vllm" else plan_for(scenario, system)
        return cls(cell, scenario, plan, reuse_rate if plan is not None and plan.staying.slots else 0.0)


def predicted(known: Sequence[Known], numbers: Numbers) -> np.ndarray:
    """Tokens/s of every cell without events."""
    delays: dict[str, Delays] = {}
    rates = []
    for one in known:
        disk = "emmc" if one.cell.disk == "eMMC" else "nvme"
        if disk not in delays:
            delays[disk] = Delays(device_with(one.scenario.device, numbers), one.scenario.model)
        if one.plan is None:
            tokens_per_s = _in_memory(one.scenario, delays[disk])
        else:
            tokens_per_s = one.cell.batch / delays[disk].step_s(one.plan, one.reuse_rate)
        rates.append(tokens_per_s * one.factor)
    return np.array(rates)


def _in_memory(scenario: Scenario, delays: Delays) -> float:
    workload, model = scenario.decode.workload, scenario.model
    each = (workload.context + workload.output) * model.kv_bytes_per_token
    together = int((scenario.decode.budget.in_memory_kv_bytes or 0) // each)
    left, seconds = workload.batch, 0.0
    while left:
        wave = min(left, together)
        left -= wave
        seconds += delays.queues.op_s(DecodeStep(wave, workload.context + workload.output / 2))
    return workload.batch / seconds


def errors(printed: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Distance to the interval that one printed decimal allows, over its nearer end."""
    low, high = printed - HALF_DIGIT, printed + HALF_DIGIT
    return np.where(ours < low, ours / low - 1, np.where(ours > high, ours / high - 1, 0.0))


def residuals(printed: np.ndarray, ours: np.ndarray) -> np.ndarray:
    low, high = np.log(printed - HALF_DIGIT), np.log(printed + HALF_DIGIT)
    logs = np.log(ours)
    outside: np.ndarray = np.where(logs < low, logs - low, np.where(logs > high, logs - high, 0.0))
    # Inside the interval the middle is a little better.
    return outside + 1e-3 * (logs - np.log(printed))


def fitted(known: Sequence[Known], start: Numbers) -> Numbers:
    """The numbers whose residuals are least by Huber's rule: the scale beyond which a cell pulls linearly follows from
    the residuals themselves."""
    printed = np.array([one.cell.printed for one in known])

    def function(numbers: Numbers) -> np.ndarray:
        return residuals(printed, predicted(known, numbers))

    numbers, scale = start, 0.05
    for _ in range(4):
        numbers = found(function, numbers, BOUNDS, scale=scale, rounds=40, enough=1e-5, ridge=1e-9)
        scale = huber_scale(function(numbers))
    return numbers


def orderings(cells: Sequence[Cell], ours: np.ndarray) -> tuple[int, int]:
    """Pairs of methods in the same place (disk, context, batch; no disk goes with both) in the printed order, of all
    that are not tied in print."""
    right = pairs = 0
    for i, one in enumerate(cells):
        for j, other in enumerate(cells[:i]):
            here = (one.context, one.batch) == (other.context, other.batch)
            if not here or one.printed == other.printed or {one.disk, other.disk} == {"eMMC", "NVMe"}:
                continue
            pairs += 1
            right += (one.printed > other.printed) == (ours[i] > ours[j])
    return right, pairs


def tell(cells: Sequence[Cell], ours: np.ndarray, numbers: Numbers | None = None) -> None:
    off = errors(np.array([cell.printed for cell in cells]), ours)
    for cell, value, error in zip(cells, ours, off, strict=True):
        place = f"{cell.disk:5s} {cell.method:20s} {cell.context:6d} {cell.batch:3d}"
        print(f"{place} {cell.printed:6.1f} {value:7.2f} {error:+.1%}")
    for name, value in (numbers or {}).items():
        print(f"{name:14s} {value:.4g}")
    right, pairs = orderings(cells, ours)
    print(f"median {np.median(abs(off)):.1%}, 90th percentile {np.quantile(abs(off), 0.9):.1%}, order {right}/{pairs}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("fit", "leave-out", "cells"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", action="store_true", help="leave the storage's numbers as they are")
    parser.add_argument("--decoded", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    everything = cells()

    def simulate_all(numbers: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
        return simulate([scenario_of(cell, numbers, chosen.decoded) for cell in everything], chosen.workers)

    if chosen.what == "cells":
        tell(everything, simulate_all(None)[0])
        return
    start = {name: begin for name, (begin, _, _) in FREE.items()}
    if not chosen.device:
        start |= {name: begin for name, (_, _, begin, _, _) in STORAGE.items()}
    numbers = start
    known = [Known.of(cell, USUAL_REUSE) for cell in everything]
    for _ in range(chosen.rounds):
        numbers = fitted(known, numbers)
        tell(everything, predicted(known, numbers), numbers)
        ours, reuse = simulate_all(numbers)
        known = corrected(known, partial(predicted, numbers=numbers), ours, reuse)
        tell(everything, ours, numbers)
    if chosen.what == "leave-out":
        leave_out(known, start)


def leave_out(known: Sequence[Known], start: Numbers) -> None:
    """Fits on a part of the cells, and the errors on both parts. They begin at `start`, which has seen no cell, and not
    at the fit on all: a number that the rest says nothing about would stay what the cells left out made it."""
    rows: list[tuple[str, str, float]] = []
    for what, left_out in LEFT_OUT.items():
        kept = np.array([not left_out(one.cell) for one in known])
        numbers = fitted([one for one, keep in zip(known, kept, strict=True) if keep], start)
        signed = errors(np.array([one.cell.printed for one in known]), predicted(known, numbers))
        if what in SYSTEMS:
            there = [(one.cell, math.log1p(signed[n])) for n, one in enumerate(known) if not kept[n]]
            rows += [(what, f"{cell.disk} {cell.context} b{cell.batch}", error) for cell, error in there]
        error = abs(signed)
        parts = [f"{np.median(part):.1%}, {np.quantile(part, 0.9):.1%}" for part in (error[~kept], error[kept])]
        print(
            f"without {what} ({(~kept).sum()} cells): median and p90 there {parts[0]}; elsewhere {parts[1]}", flush=True
        )
    write_left_out(PRINTED / "left_out.csv", known[0].scenario.device.name, rows)


LEFT_OUT: dict[str, Callable[[Cell], bool]] = {
    **{f"batch {batch}": lambda cell, batch=batch: cell.batch == batch for batch in (1, 2, 4, 8, 16)},
    "32K": lambda cell: cell.context == 32768,
    **{method: lambda cell, method=method: cell.method == method for method in SYSTEMS},
}

if __name__ == "__main__":
    main()
