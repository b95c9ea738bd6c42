"""P/D-Device simulated beside real runs, by processor time: python studies/assist_live.py FOLDER [--turns N].

Turn by turn, each system of `pd_device/live` runs once for real between two halves of the tables that price its ops,
24 steps a point each, so that both see the same seconds of the machine. Probes before the first half, before and behind
the run and behind the second half tell of pairs in which it has changed its speed (calibration/speed.py); these do not
count. Each run that counts is then
simulated on its own inputs with its own tables, and the errors of all pairs are printed: what each role's prompt and
tokens take in the two worlds, and how many pairs were left out. FOLDER keeps the device with the last tables, and
`pairs.csv`, which has every pair.

All that is kept is processor time of the thread that computes. Waiting (for the link, for the other role, for a core)
is in no figure, and neither is handing ops over, so that the device of the tables takes no time for it: what users see
is what `kvferry fidelity` compares, by the wall, which takes a machine that has nothing else to do.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from time import thread_time
from typing import Any, NamedTuple
from unittest.mock import patch

from assist_tables import Grids, Held, Points, medians, points_of, write
from transformers import PreTrainedModel

from kvferry.backends.live.assist import parts
from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.calibration.speed import MOST_CHANGE, Speed
from kvferry.machine.ops import DecodeRun, DecodeStep, Op, Prefill
from kvferry.model.prompts import Prompts
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import BACKENDS, run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SYSTEMS = ("pd-device", "refinement-only", "tokens-only", "cloud-only", "device-only")
# Whose cloud refines prompts, and so looks at the attention of its own.
REFINING = ("pd-device", "refinement-only")
# By the model that a role has: the processor's name in spans.
CLOUD = "cloud/cpu"
ROLES = {"byte-small": "cpu", "byte-large": CLOUD}
# A machine warms up with a shorter prompt.
LEAST_TOKENS = 100
# Half of the steps of a point.
STEPS = 24
DEVICE = """
name: of-the-study
extends: laptop-cpu
processors: {cpu: {threads: 1, dispatch_s: 0 s, measured: measured}}
"""


class Took(NamedTuple):
    """A piece of work of a role, in either world. `what`: the prompt, or a token."""

    role: str
    what: str
    seconds: float
    tokens: int = 1


class Pair(NamedTuple):
    """A run between its tables. `took_s`: of it, as ``summed``; `change`: the slowest of its probes over the
    fastest."""

    system: str
    run: Run
    took_s: Mapping[tuple[str, str], float]
    tables: Mapping[str, Grids]
    change: float

    @property
    def counts(self) -> bool:
        return self.change <= MOST_CHANGE


class Bench:
    """The models of both roles, which runs and tables share, and what each system asks of them."""

    def __init__(self) -> None:
        self._models = {name: warm_model(load_scenario("pd_device/live", [f"model={name}"])) for name in ROLES}
        self._role_of = {model.config.hidden_size: ROLES[name] for name, (model, _) in self._models.items()}
        self._held = {name: Held(*found) for name, found in self._models.items()}

    def points(self, system: str) -> dict[str, Points]:
        """Of tables around all ops of a run, by model; the run warms up."""
        _, ops, _ = self.ran(system)
        return {name: points_of(ops[role]) for name, role in ROLES.items() if role in ops}

    def pair(self, system: str, points: Mapping[str, Points]) -> Pair:
        speed = Speed()
        speed.probe()
        before = self._halves(system, points)
        speed.probe()
        run, _, found = self.ran(system)
        speed.probe()
        after = self._halves(system, points)
        speed.probe()
        tables = {name: medians((before[name], after[name])) for name in points}
        return Pair(system, run, summed(found), tables, speed.change)

    def ran(self, system: str) -> tuple[Run, dict[str, list[Op]], list[Took]]:
        """A real run, its ops by role, and what they took."""
        ops: dict[str, list[Op]] = defaultdict(list)
        found: list[Took] = []
        really = AssistRunner.run

        def run(runner: AssistRunner, op: Op, *more: Any) -> Any:
            began_s = thread_time()
            said = really(runner, op, *more)
            took_s = thread_time() - began_s
            assert runner.model.decoder is not None
            role = self._role_of[runner.model.decoder.model.config.hidden_size]
            if isinstance(op, Prefill) and op.context_tokens + op.tokens >= LEAST_TOKENS:
                ops[role].append(op)
                found.append(Took(role, "prompt", took_s))
            elif isinstance(op, DecodeRun | DecodeStep) and op.context_tokens >= LEAST_TOKENS:
                ops[role].append(op)
                found.append(Took(role, "token", took_s, op.tokens if isinstance(op, DecodeRun) else 1))
            return said

        def warm(scenario: Scenario) -> tuple[PreTrainedModel, Prompts]:
            return self._models[scenario.model.name]

        with patch.object(AssistRunner, "run", run), patch.object(parts, "warm_model", warm):
            ended = run_scenario(scenario_of(system))
        assert ended.outcome == "done", ended.why
        return ended, ops, found

    def _halves(self, system: str, points: Mapping[str, Points]) -> dict[str, Grids]:
        return {
            name: self._held[name].grids(of, STEPS, refined=system in REFINING and ROLES[name] == CLOUD)
            for name, of in points.items()
        }


def scenario_of(system: str, *settings: str) -> Scenario:
    # Of the paper's order, as docs/validation/live.md has them.
    papers = ["policies.assist.mask=with-token"] if system in REFINING else []
    return load_scenario("pd_device/live", [f"system={system}", "live.cloud=within", *papers, *settings])


def simulated(pair: Pair, folder: Path) -> list[Took]:
    """What ops take in the simulated run, on the inputs of the real one and with its tables."""
    for name, tables in pair.tables.items():
        write(folder / "measured" / name, tables)
    device = (folder / "device.yaml").resolve()
    scenario = scenario_of(pair.system, "costs=table", f"device={device}", f"machines.cloud.device={device}")
    found = []
    for span in run_scenario(scenario, open_world=BACKENDS["sim"], inputs=pair.run.inputs).spans:
        took_s = span.end_s - span.start_s
        if span.label == "Prefill":
            found.append(Took(span.resource, "prompt", took_s))
        elif span.label in ("DecodeRun", "DecodeStep"):
            tokens = scenario.assist.workload.output - 1 if span.label == "DecodeRun" else 1
            found.append(Took(span.resource, "token", took_s, tokens))
    return found


def summed(ops: Iterable[Took]) -> dict[tuple[str, str], float]:
    """Seconds of a whole prompt, and of a token in the mean, by role."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    tokens: dict[tuple[str, str], int] = defaultdict(int)
    for one in ops:
        seconds[one.role, one.what] += one.seconds
        tokens[one.role, one.what] += one.tokens
    return {key: took_s / (1 if key[1] == "prompt" else tokens[key]) for key, took_s in seconds.items()}


def told(pairs: Sequence[Pair], errors: Sequence[Mapping[tuple[str, str], float]]) -> None:
    """Print the errors of a system, in the pairs that count and in all."""
    for role, what in errors[0]:
        all_of_it = [one[role, what] for one in errors]
        kept = [one for one, pair in zip(all_of_it, pairs, strict=True) if pair.counts]
        took_ms = [1e3 * pair.took_s[role, what] for pair in pairs if pair.counts]
        if len(kept) < 2:
            print(f"{pairs[0].system}, {role}, {what}: {len(kept)} of {len(pairs)} pairs count, too few")
            continue
        low, middle, high = quantiles(kept, n=4)
        print(
            f"{pairs[0].system}, {role}, {what}: {median(took_ms):.2f} ms, {middle:+.1%} ({low:+.1%} to {high:+.1%}) "
            f"in {len(kept)} of {len(pairs)} pairs; in all {median(all_of_it):+.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=12)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    (asked.folder / "device.yaml").write_text(DEVICE)
    bench = Bench()
    points = {system: bench.points(system) for system in SYSTEMS}
    pairs: dict[str, list[Pair]] = {system: [] for system in SYSTEMS}
    errors: dict[str, list[dict[tuple[str, str], float]]] = {system: [] for system in SYSTEMS}
    with (asked.folder / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("turn", "system", "role", "what", "simulated_ms", "measured_ms", "error", "probes"))
        for n in range(1, asked.turns + 1):
            for system in SYSTEMS:
                pair = bench.pair(system, points[system])
                ours = summed(simulated(pair, asked.folder))
                pairs[system].append(pair)
                errors[system].append({key: took_s / pair.took_s[key] - 1 for key, took_s in ours.items()})
                for key, took_s in ours.items():
                    both = (f"{1e3 * one:.2f}" for one in (took_s, pair.took_s[key]))
                    rows.writerow((n, system, *key, *both, f"{errors[system][-1][key]:+.3f}", f"{pair.change:.3f}"))
                file.flush()
            print(f"turn {n} of {asked.turns}", flush=True)
    print("system, role, what: measured, error (half of the pairs)")
    for system in SYSTEMS:
        told(pairs[system], errors[system])


if __name__ == "__main__":
    main()
