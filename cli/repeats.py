"""Scenarios run several times, in turns: a machine that warms up or is busy for a while meets all systems alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.repeats import Repeats
from kvferry.cli.progress import counted, say
from kvferry.pipelines.record import Run
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario


@dataclass
class Carried:
    """Finished runs by system, why systems failed, and the run that Ctrl-C ended."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: Run | None = None


def check_runs(scenario: Scenario, runs: int) -> None:
    """Raises InputError for several runs in a world where all are the same."""
    if runs > 1 and scenario.backend == "sim":
        raise InputError(
            f"--runs {runs}: the modelled world gives the same every time; give another --seed, or run for real with "
            "--set backend=torch"
        )


def carry_out(scenarios: Mapping[str, Scenario], runs: int, keep_going: bool = True) -> Carried:
    """Every scenario once, then every one again, `runs` times. A system that fails is not tried again; what it finished
    is kept. Raises its error instead unless `keep_going`."""
    from kvferry.pipelines.run import run_scenario

    carried = Carried()
    for turn in range(runs):
        for name, scenario in scenarios.items():
            if name in carried.failed:
                continue
            of = f" (run {turn + 1} of {runs})" if runs > 1 else ""
            try:
                with counted(f"{scenario.name}: {name}{of}") as progress:
                    run = run_scenario(scenario, progress, say=say)
            except KvferryError as error:
                if not keep_going:
                    raise
                carried.failed[name] = str(error)
                continue
            except KeyboardInterrupt:
                carried.interrupted = Run(outcome="interrupted")
                return carried
            if run.interrupted:
                carried.interrupted = run
                return carried
            carried.runs.setdefault(name, []).append(run)
    return carried


def summed_up(
    scenario: Scenario, runs: list[Run], headline: str, envelope_for: Callable[[Scenario, Run], dict[str, Any]]
) -> tuple[Run, dict[str, Any]]:
    """The run that stands for all, and the JSON object of all: medians in place of its metrics, with their "ranges"
    over so many "runs"."""
    repeats = Repeats(runs, [metrics_for(scenario, run) for run in runs])
    run = runs[repeats.typical(headline)]
    envelope = envelope_for(scenario, run)
    if len(runs) > 1:
        envelope |= {
            "metrics": repeats.medians,
            "runs": len(runs),
            "ranges": {k: list(r) for k, r in repeats.ranges.items()},
        }
    return run, envelope
