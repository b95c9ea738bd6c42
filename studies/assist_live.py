"""P/D-Device simulated beside real runs, by processor time: python studies/assist_live.py SMALL LARGE [--turns N].

SMALL and LARGE are folders that `kvferry calibrate --quick --model byte-small --output SMALL` (and byte-large, LARGE)
have made. The machine may have other work: in turns, the tables of both models are measured once
(studies/assist_tables.py), and every system of `pd_device/live` runs once for real, so that both see the machine's fast
and slow minutes alike. What is kept of either is processor time of the thread that computes. Then the medians over all
turns become the tables, every system is simulated with them on the inputs of a real run, and what each role's prefill
and tokens take in the two worlds is printed.

Waiting (for the link, for the other role, for a core) is in no figure: what users see is what `kvferry fidelity`
compares, by the wall, which takes a machine that has nothing else to do.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import quantiles
from time import thread_time
from typing import Any, NamedTuple
from unittest.mock import patch

from assist_tables import medians, runner_of, turn, write

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.machine.ops import DecodeRun, Op, Prefill
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import BACKENDS, run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SYSTEMS = ("pd-device", "refinement-only", "tokens-only", "cloud-only", "device-only")
# By the model that a role has: the processor's name in spans.
ROLES = {"byte-small": "cpu", "byte-large": "cloud/cpu"}
# A machine warms up with a shorter prompt.
LEAST_TOKENS = 100


class Took(NamedTuple):
    """A piece of work of a role, in either world. `what`: the prompt, or a token."""

    role: str
    what: str
    seconds: float
    tokens: int = 1


def scenario_of(system: str, *settings: str) -> Scenario:
    return load_scenario("pd_device/live", [f"system={system}", "live.cloud=within", *settings])


def of_tables(folders: Sequence[Path]) -> Sequence[str]:
    small, large = (folder.resolve() / "profile.yaml" for folder in folders)
    return "costs=table", f"device={small}", f"machines.cloud.device={large}"


def measured(scenario: Scenario, roles: dict[int, str]) -> tuple[Run, list[Took]]:
    """A real run, and what its ops took. `roles`: by the width of the model."""
    found: list[Took] = []
    really = AssistRunner.run

    def run(runner: AssistRunner, op: Op, *more: Any) -> Any:
        began_s = thread_time()
        said = really(runner, op, *more)
        took_s = thread_time() - began_s
        assert runner.decoder is not None
        role = roles[runner.decoder.model.config.hidden_size]
        if isinstance(op, Prefill) and op.context_tokens + op.tokens >= LEAST_TOKENS:
            found.append(Took(role, "prompt", took_s))
        elif not isinstance(op, Prefill) and op.context_tokens >= LEAST_TOKENS:
            found.append(Took(role, "token", took_s, op.tokens if isinstance(op, DecodeRun) else 1))
        return said

    with patch.object(AssistRunner, "run", run):
        return run_scenario(scenario), found


def simulated(scenario: Scenario, real: Run) -> list[Took]:
    """What ops take in the simulated run, on the inputs of a real one."""
    found = []
    for span in run_scenario(scenario, open_world=BACKENDS["sim"], inputs=real.inputs).spans:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs=2, metavar="SMALL LARGE", help="of the two profiles")
    parser.add_argument("--turns", type=int, default=6)
    asked = parser.parse_args()
    runners = {model: runner_of(model) for model in ROLES}
    roles = {
        runner.decoder.model.config.hidden_size: ROLES[model] for model, runner in runners.items() if runner.decoder
    }
    tables: dict[str, list[Any]] = {model: [] for model in ROLES}
    runs: dict[str, list[dict[tuple[str, str], float]]] = {system: [] for system in SYSTEMS}
    last: dict[str, Run] = {}
    # The first turn warms up.
    for n in range(asked.turns + 1):
        for model, runner in runners.items():
            tables[model].append(turn(runner, n))
        for system in SYSTEMS:
            last[system], ops = measured(scenario_of(system), roles)
            assert last[system].outcome == "done", last[system].why
            runs[system].append(summed(ops))
        print(f"turn {n} of {asked.turns}", flush=True)
    for turns, folder in zip(tables.values(), asked.folders, strict=True):
        write(folder, medians(turns[1:]))
    print("system, role, what: simulated, measured, error (half of the runs)")
    for system in SYSTEMS:
        for key, took_s in summed(simulated(scenario_of(system, *of_tables(asked.folders)), last[system])).items():
            low, middle, high = quantiles((one[key] for one in runs[system][1:]), n=4)
            print(
                f"{system}, {', '.join(key)}: {1e3 * took_s:.2f}, {1e3 * middle:.2f} ms, {took_s / middle - 1:+.1%} "
                f"({1e3 * low:.2f} to {1e3 * high:.2f})"
            )


if __name__ == "__main__":
    main()
