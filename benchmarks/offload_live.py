"""KVSwap for real on a paced file: what overlap and reuse gain, and how far the simulator is off.

    python benchmarks/offload_live.py gains [--runs 3] [--set KEY=VALUE ...]
    python benchmarks/offload_live.py fidelity [--runs 3] [--set KEY=VALUE ...] --output FOLDER

``gains`` decodes the scenario with reading ahead and the reuse buffer, and without either, in turns. ``fidelity``
measures what ops take inside the pipeline on a grid of contexts and selections, writes them as a profile's tables, and
compares throughput on other contexts and selections: live, against the simulator with these tables and the selections
that the live run made. An op's seconds run from when it could have begun, so handing it over is in them.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.machine.span import Span
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SCENARIO = "kvswap/live"
# (context, selected tokens): what is measured, and what is predicted from it.
GRID = [(context, selected) for context in (1024, 3584) for selected in (160, 480)]
CHECKS = [(2048, 400), (3072, 240), (4096, 400), (4096, 160)]
WAYS = {
    "both": (),
    "no reuse": ("reuse=false",),
    "no overlap": ("ahead=false",),
    "neither": ("reuse=false", "ahead=false"),
}


def scenario(settings: Sequence[str], **changes: Any) -> Scenario:
    return load_scenario(
        SCENARIO, [*settings, *(f"{key.replace('__', '.')}={value}" for key, value in changes.items())]
    )


def gains(settings: Sequence[str], runs: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(runs):
        for name, policies in WAYS.items():
            run = run_scenario(scenario([*settings, *(f"policies.{policy}" for policy in policies)]))
            rates[name].append(run.figures["throughput_tokens_per_s"])
            reuse, late = run.figures.get("reuse_rate", 0.0), run.measured.get("storage_batches_late")
            print(f"{name}: {rates[name][-1]:.1f} tokens/s, reuse {reuse:.1%}, late batches {late}", flush=True)
    both = np.median(rates["both"])
    for name, values in rates.items():
        middle = np.median(values)
        print(f"| {name} | {middle:.1f} tokens/s | {both / middle:.2f}x | {np.ptp(values) / middle:.0%} |")


def op_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Mean seconds of each op of decoding, from when it could have begun until its end: means add up to a step."""
    computed = sorted((span for span in spans if span.resource != "storage"), key=lambda span: span.start_s)
    reads = sorted(span.end_s for span in spans if span.label == "Read")
    writes = [span.start_s for span in spans if span.label == "OutputHead"]
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for before, span in zip(computed, computed[1:], strict=False):
        if before.start_s < writes[0]:
            continue
        could_s = before.end_s
        if span.label in ("Select", "DecodeAttention"):
            # The last read that had arrived when it began.
            arrived = np.searchsorted(reads, span.start_s) - 1
            could_s = max(could_s, reads[arrived] if arrived >= 0 else 0.0)
        seconds[span.label].append(span.end_s - could_s)
    # Handing over a read is the host's work, as is looking up.
    kept = [span.end_s for span in computed if span.label == "Bookkeep"]
    begun = sorted(span.start_s for span in spans if span.label == "Read")
    handed = [start - end for end, start in zip(kept, begun, strict=False)]
    seconds["Bookkeep"] = [a + b for a, b in zip(seconds["Bookkeep"], handed, strict=False)]
    return {label: float(np.mean(values)) for label, values in seconds.items()}


def fidelity(settings: Sequence[str], folder: Path, runs: int) -> None:
    # The slots are given; short contexts need them as long ones do.
    settings = ["budget.kv_share=null", "budget.kv=64 MiB", *settings]
    base = scenario(settings)
    measured: dict[tuple[int, int], list[dict[str, float]]] = {point: [] for point in GRID}
    for point in [*GRID] * runs:
        context, selected = point
        at = scenario(settings, workload__context=context, policies__selected_tokens=selected, workload__output=24)
        measured[point].append(op_seconds(run_scenario(at).spans))
    middle = {
        point: {op: float(np.median([one[op] for one in several])) for op in several[0]}
        for point, several in measured.items()
    }
    for (context, selected), seconds in middle.items():
        print(f"{context}, {selected}: " + ", ".join(f"{op} {1e6 * s:.0f} us" for op, s in sorted(seconds.items())))
    write_tables(folder / "measured" / base.model.name, middle, group=8, batch=base.workload.batch)
    errors = []
    for context, selected in CHECKS:
        sizes = {"workload__context": context, "policies__selected_tokens": selected, "workload__output": 32}
        recorded = folder / f"selections-{context}-{selected}.npz"
        live = [run_scenario(scenario(settings, live__record_selections=recorded, **sizes)) for _ in range(runs)]
        simulated = run_scenario(
            scenario(
                settings,
                backend="sim",
                costs="table",
                device__processors__cpu__measured=(folder / "measured").resolve(),
                device__processors__cpu__dispatch_s="0 s",
                workload__selections=recorded.resolve(),
                **sizes,
            )
        )
        rates = [rate(run) for run in live]
        errors.append(rate(simulated) / float(np.median(rates)) - 1)
        late = live[-1].measured["storage_batches_late"]
        print(
            f"| {context} | {selected} | {np.median(rates):.1f} | {np.ptp(rates) / np.median(rates):.0%} |"
            f" {rate(simulated):.1f} | {errors[-1]:+.1%} | {live[-1].figures['reuse_rate']:.1%} | {late} |",
            flush=True,
        )
    print(f"median |error| {np.median(np.abs(errors)):.1%}, worst {np.max(np.abs(errors)):.1%}")


def rate(run: Run) -> float:
    return run.figures["throughput_tokens_per_s"]


def write_tables(folder: Path, measured: dict[tuple[int, int], dict[str, float]], group: int, batch: int) -> None:
    """Grids that ``sim/costs/table.py`` reads; what an op does not depend on is pooled."""
    folder.mkdir(parents=True, exist_ok=True)
    axes: dict[str, tuple[str, str, Any]] = {
        "select": ("Select", "keys", lambda context, selected: context),
        "decode_attention": ("DecodeAttention", "context", lambda context, selected: selected + (group + 1) / 2),
        "bookkeep": ("Bookkeep", "units", lambda context, selected: batch * selected // group),
        "feed_forward": ("FeedForward", "batch", lambda context, selected: batch),
        "output_head": ("OutputHead", "batch", lambda context, selected: batch),
    }
    for file, (op, axis, at) in axes.items():
        points: defaultdict[float, list[float]] = defaultdict(list)
        for (context, selected), seconds in measured.items():
            points[at(context, selected)].append(seconds[op])
        rows = "".join(f"{point},{float(np.mean(values))!r}\n" for point, values in sorted(points.items()))
        (folder / f"{file}.csv").write_text(f"{axis},seconds\n{rows}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gains", "fidelity"))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/offload-live"))
    arguments = parser.parse_args()
    if arguments.what == "gains":
        gains(arguments.settings, arguments.runs)
    else:
        fidelity(arguments.settings, arguments.output, arguments.runs)


if __name__ == "__main__":
    main()
