"""KVSwap for real on a paced file: what overlap and reuse gain, and how far the simulator is off.

    python studies/offload_live.py gains [--runs 3] [--set KEY=VALUE ...]
    python studies/offload_live.py fidelity --device PROFILE --output FOLDER [--runs 1] [--set KEY=VALUE ...]

``gains`` decodes the scenario with reading ahead and the reuse buffer, and without either, in turns.

``fidelity`` compares throughput on batches, contexts and selections that no calibration has as its points: live,
against the simulator on the profile that `kvferry calibrate` wrote (`costs: table`), both with storage as slow as the
scenario's, and with the selections that the live run made. Every cell is carried out once per run, in turns, and what
was measured is kept in the folder: called again, it goes on there. So a machine that is faster at some times than at
others is met at several. Per cell, ops of both worlds are listed side by side, from when an op could have begun until
its end.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvferry.calibration.decoding import OPS, step_seconds
from kvferry.pipelines.decoding.plan import shape_of
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SCENARIO = "kvswap/live"
WAYS = {
    "both": (),
    "no reuse": ("reuse=false",),
    "no overlap": ("ahead=false",),
    "neither": ("reuse=false", "ahead=false"),
}


class Cell(NamedTuple):
    batch: int
    context: int
    selected: int


# None of these numbers is one of a calibration's.
CELLS = [
    Cell(8, 2048, 400),
    Cell(8, 3072, 240),
    Cell(8, 6144, 400),
    Cell(8, 6144, 160),
    Cell(2, 2048, 240),
    Cell(2, 6144, 400),
    Cell(12, 1536, 240),
    Cell(12, 3072, 560),
]
TOKENS = 97


def scenario(settings: Sequence[str], **changes: Any) -> Scenario:
    return load_scenario(
        SCENARIO, [*settings, *(f"{key.replace('__', '.')}={value}" for key, value in changes.items())]
    )


def gains(settings: Sequence[str], runs: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(runs):
        for name, policies in WAYS.items():
            run_of = scenario([*settings, *(f"policies.{policy}" for policy in policies)])
            run = run_scenario(run_of)
            rates[name].append(rate(run))
            reuse, late = run.figures.get("reuse_rate", 0.0), run.measured.get("storage_batches_late")
            print(f"{name}: {rates[name][-1]:.1f} tokens/s, reuse {reuse:.1%}, late batches {late}", flush=True)
            memory = [run.measured[f"kv_{what}_bytes"] for what in ("metadata", "buffer", "read")]
            memory.append(budget_bytes(run_of))
            told = "metadata {:.2f} MiB, buffers {:.2f}, read {:.2f}; budget {:.2f}".format(
                *(n / 2**20 for n in memory)
            )
            print(f"{name}: {told}", flush=True)
    both = np.median(rates["both"])
    for name, values in rates.items():
        middle = np.median(values)
        print(f"| {name} | {middle:.1f} tokens/s | {both / middle:.2f}x | {np.ptp(values) / middle:.0%} |")


def budget_bytes(run_of: Scenario) -> float:
    """What metadata and buffers of the whole batch may take."""
    full_bytes = float(shape_of(run_of.model).full_bytes(run_of.workload.context))
    return run_of.workload.batch * run_of.kv_budget_bytes(full_bytes)


def fidelity(settings: Sequence[str], device: Path, folder: Path, runs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The slots are given; short contexts need them as long ones do.
    here = [f"device={device.resolve()}", "device.storage=emmc"]
    settings = ["budget.kv_share=null", "budget.kv=64 MiB", *here, *settings]
    kept = folder / "runs.json"
    measured: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    for _ in range(runs):
        for cell in CELLS:
            measured.append(both_worlds(settings, folder, cell))
            kept.write_text(json.dumps(measured, indent=1))
    print("| batch | context | selected | live, tokens/s | spread | simulated | error | reuse | late batches |")
    print("|---|---|---|---|---|---|---|---|---|")
    errors = []
    for cell in CELLS:
        of = [one for one in measured if tuple(one["cell"]) == cell]
        # Of all tokens over all seconds.
        live, simulated = (float(1 / np.mean([1 / one[world]["rate"] for one in of])) for world in ("live", "sim"))
        spread = np.ptp([one["live"]["rate"] for one in of]) / live
        errors.append(simulated / live - 1)
        late = sum(one["late"] for one in of) / sum(one["batches"] for one in of)
        print(
            f"| {cell.batch} | {cell.context:,} | {cell.selected} | {live:.1f} | {spread:.0%} | {simulated:.1f} |"
            f" {errors[-1]:+.1%} | {np.mean([one['live']['reuse'] for one in of]):.0%} | {late:.1%} |"
        )
    print(f"\nmedian |error| {np.median(np.abs(errors)):.1%}, worst {np.max(np.abs(errors)):.1%}\n")
    names = [*OPS.values(), "waiting"]
    print("| microseconds, simulated / live |", " | ".join(names), "|\n|---|", "---|" * len(names), sep="")
    for cell in CELLS:
        of = [one for one in measured if tuple(one["cell"]) == cell]
        told = (
            " / ".join(f"{1e6 * np.mean([one[world]['ops'][op] for one in of]):,.0f}" for world in ("sim", "live"))
            for op in names
        )
        print(f"| {cell.batch}, {cell.context:,}, {cell.selected} |", " | ".join(told), "|")


def both_worlds(settings: Sequence[str], folder: Path, cell: Cell) -> dict[str, Any]:
    recorded = folder / "selections-{}-{}-{}.npz".format(*cell)
    sizes = {
        "workload__batch": cell.batch,
        "workload__context": cell.context,
        "policies__selected_tokens": cell.selected,
        "workload__output": TOKENS,
    }
    live = run_scenario(scenario(settings, live__record_selections=recorded, **sizes))
    simulated = run_scenario(
        scenario(settings, backend="sim", costs="table", workload__selections=recorded.resolve(), **sizes)
    )
    late, batches = (live.measured[key] for key in ("storage_batches_late", "storage_batches"))
    told = {"cell": cell, "live": figures(live), "sim": figures(simulated), "late": late, "batches": batches}
    print(f"{cell}: live {told['live']['rate']:.1f}, simulated {told['sim']['rate']:.1f} tokens/s", flush=True)
    return told


def figures(run: Run) -> dict[str, Any]:
    """Throughput, reuse, and mean seconds per op; what steps wait for reads besides, as if it were an op of a layer."""
    steps = step_seconds(run.spans)
    ops = {op: float(np.mean([step[op] for step in steps])) for op in OPS.values()}
    layers = sum(span.label == "FeedForward" for span in run.spans) / len(steps)
    times_s = run.requests[0].token_times_s
    whole_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    rest_s = whole_s - ops["OutputHead"] - layers * sum(s for op, s in ops.items() if op != "OutputHead")
    return {"rate": rate(run), "reuse": run.figures["reuse_rate"], "ops": ops | {"waiting": rest_s / layers}}


def rate(run: Run) -> float:
    return run.figures["throughput_tokens_per_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gains", "fidelity"))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--device", type=Path, help="a profile that kvferry calibrate wrote")
    parser.add_argument("--output", type=Path, default=Path("runs/offload-live"))
    arguments = parser.parse_args()
    if arguments.what == "gains":
        gains(arguments.settings, arguments.runs)
    elif arguments.device is None:
        parser.error("fidelity needs --device PROFILE, from kvferry calibrate")
    else:
        fidelity(arguments.settings, arguments.device, arguments.output, arguments.runs)


if __name__ == "__main__":
    main()
