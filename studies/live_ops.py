"""Ops of real loads and decoding, priced by tables of the same minutes: python studies/live_ops.py FILE.

Turn by turn, each cell runs once for real between two halves of the tables that price its ops, which are measured as
`kvferry calibrate` does, at points around the cell's. Probes tell of pairs in which the machine has changed its speed
(calibration/speed.py), which do not count. FILE keeps every pair as CSV: what all ops of a kind take by the tables and
for real, in processor time of the thread that computes. Waiting, handing over, decompression (processes of their own)
and the prompts of a batch are in no figure; which ops a load has is the run's, whose decisions follow the wall clock.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any, NamedTuple
from unittest.mock import patch

from kvferry.backends.live.decoding.layers import Layers
from kvferry.backends.live.loading.runner import SessionRunner
from kvferry.backends.live.turns.runner import TurnRunner
from kvferry.calibration import compute, decoding
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.settings import Settings
from kvferry.calibration.speed import MOST_CHANGE, Speed
from kvferry.calibration.tables import tables
from kvferry.machine.op import Op
from kvferry.machine.ops import OutputHead, PrefillLayer
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.costs.op_rules import RULES
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.table import MeasuredTable
from kvferry.specs.scenario import Scenario

# What an op took, in seconds.
Timed = tuple[Op, float]
# Of a load of 3,000 tokens in chunks of 512: columns around them, and the question's prefill.
COLUMNS = [(before, tokens) for before in (0, 1024, 2048, 4096) for tokens in (256, 512)]
QUESTIONS = [(before, tokens) for before in (2048, 4096) for tokens in (16, 64)]
# Of conversations of 2,048 to 2,300 tokens in blocks of 64: columns around them, questions, and answers.
BLOCKS = [(before, tokens) for before in (0, 1024, 2048) for tokens in (64, 128)]
NEW = [(before, tokens) for before in (1024, 2048, 4096) for tokens in (16, 64, 256)]
ANSWERS = (1024, 2048, 4096)
# Of two sequences of 2,048 tokens, 240 of them selected: batch, context, selected.
STEPS = [decoding.Point(batch, *of) for batch in (1, 4) for of in ((1024, 384), (4096, 384), (4096, 128))]


class Cell(NamedTuple):
    name: str
    scenario: Scenario
    runner: type
    # Measures half of the tables.
    half: Callable[[Rig, Path], list[Measurement]]


def cells() -> Iterator[Cell]:
    load = (
        "workload.context=3000",
        "workload.output=1",
        "workload.question=48",
        "link.rate=15 Mbit/s",
        "link.rtt=20 ms",
    )
    for system in ("local-prefill", "ferry"):
        yield Cell(system, load_scenario("live/quickstart", [f"system={system}", *load]), SessionRunner, of_loads)
    yield Cell("conversations", load_scenario("session/live"), TurnRunner, of_turns)
    decode = ("workload.batch=2", "workload.context=2048", "workload.output=49", "policies.selected_tokens=240")
    budget = ("budget.kv_share=null", "budget.kv=64 MiB")
    yield Cell("kvswap", load_scenario("kvswap/live", [*decode, *budget]), Layers, of_steps)


def of_loads(rig: Rig, folder: Path) -> list[Measurement]:
    return of_prompts(rig, COLUMNS, QUESTIONS)


def of_turns(rig: Rig, folder: Path) -> list[Measurement]:
    found = of_prompts(rig, BLOCKS, NEW)
    for before in ANSWERS:
        found += timed(SessionRunner, lambda: compute.answers(rig, before))  # noqa: B023
    return found


def of_prompts(rig: Rig, columns: Sequence[tuple[int, int]], questions: Sequence[tuple[int, int]]) -> list[Measurement]:
    found = []
    for before, tokens in columns:
        found += timed(SessionRunner, lambda: compute.column(rig, before, tokens, 1.0))  # noqa: B023
    for before, tokens in questions:
        found += timed(SessionRunner, lambda: compute.questions(rig, before, tokens))  # noqa: B023
    return found


def of_steps(rig: Rig, folder: Path) -> list[Measurement]:
    found = []
    for point in STEPS:
        found += timed(Layers, lambda: decoding.decoding(rig, folder, point))  # noqa: B023
    return found


def timed(runner: type, measure: Callable[[], list[Measurement]]) -> list[Measurement]:
    """Measurements with processor time in place of what the wall clock says; the first tenth warms up."""
    with taking(runner) as ops:
        found = measure()
    by_table = defaultdict(list)
    for op, took_s in ops:
        if type(op) in RULES:
            by_table[RULES[type(op)].table].append(took_s)
    return [replace(one, values=tuple(by_table[one.what][len(by_table[one.what]) // 10 :])) for one in found]


@contextmanager
def taking(runner: type) -> Iterator[list[Timed]]:
    """Yields the ops that are carried out in the block, as they come."""
    found: list[Timed] = []
    really = runner.run  # type: ignore[attr-defined]

    def run(self: Any, op: Op, *more: Any) -> Any:
        began_s = thread_time()
        said = really(self, op, *more)
        found.append((op, thread_time() - began_s))
        return said

    with patch.object(runner, "run", run):
        yield found


def pair(cell: Cell, rig: Rig, folder: Path) -> tuple[float, Mapping[str, tuple[float, float]]]:
    """How far the machine has changed its speed; by kind of op, its seconds by tables and for real."""
    speed = Speed()
    speed.probe()
    measured = cell.half(rig, folder)
    speed.probe()
    with taking(cell.runner) as ops:
        run = run_scenario(cell.scenario)
    assert run.outcome == "done", run.why
    speed.probe()
    measured += cell.half(rig, folder)
    speed.probe()
    with TemporaryDirectory() as name:
        found = tables(measured)
        for file, content in found.items():
            (Path(name) / file).write_bytes(content)
        device = cell.scenario.device
        costs = MeasuredTable.read(Path(name), Roofline(device.processors[device.main], cell.scenario.model))
    sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    question = 0
    for op, took_s in ops:
        # The output head is a part of every question's table.
        if type(op) in RULES and (costs.knows(op) or isinstance(op, OutputHead)):
            priced_s, keys = costs.cost(op).duration_s, [op.label, "all"]
            if cell.runner is TurnRunner and isinstance(op, PrefillLayer | OutputHead):
                question += isinstance(op, PrefillLayer) and op.layer == 0
                keys.append(f"question {question}")
            for key in keys:
                sums[key] = sums[key][0] + priced_s, sums[key][1] + took_s
    return speed.change, sums


def told(name: str, pairs: Sequence[tuple[float, Mapping[str, tuple[float, float]]]]) -> None:
    """Print the errors of a cell, in the pairs that count and in all."""
    for label in sorted({key for _, sums in pairs for key in sums}):
        errors = [(change, sums[label][0] / sums[label][1] - 1) for change, sums in pairs if label in sums]
        kept = [error for change, error in errors if change <= MOST_CHANGE]
        half = "{:+.1%} to {:+.1%}".format(*quantiles(kept, n=4)[::2]) if len(kept) > 1 else "too few"
        middle = f"{median(kept):+.1%}" if kept else "none"
        all_of_it = f"{median(error for _, error in errors):+.1%}"
        print(f"{name}, {label}: {middle} ({half}) in {len(kept)} of {len(errors)} pairs; in all {all_of_it}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--cells", nargs="+", help="default: all")
    asked = parser.parse_args()
    rig = Rig(Settings(model="byte-large", quick=True))
    of_cells = [cell for cell in cells() if not asked.cells or cell.name in asked.cells]
    pairs: dict[str, list[Any]] = {cell.name: [] for cell in of_cells}
    with asked.file.open("w", newline="") as file, TemporaryDirectory() as folder:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("turn", "cell", "op", "priced_ms", "measured_ms", "probes"))
        for n in range(asked.turns + 1):
            for cell in of_cells:
                found = pair(cell, rig, Path(folder))
                if not n:
                    # The first turn warms up.
                    continue
                pairs[cell.name].append(found)
                for label, both_s in found[1].items():
                    rows.writerow((n, cell.name, label, *(f"{1e3 * one:.1f}" for one in both_s), f"{found[0]:.3f}"))
                file.flush()
            print(f"turn {n} of {asked.turns}", flush=True)
    for name, of_cell in pairs.items():
        told(name, of_cell)


if __name__ == "__main__":
    main()
