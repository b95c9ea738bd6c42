"""A paper's experiments carried out: every case under every system, with its figures."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvferry.analysis.reproduction.in_flight import run_in_flight
from kvferry.analysis.reproduction.measurements import MEASUREMENTS
from kvferry.analysis.reproduction.paper import ExperimentSpec, Paper
from kvferry.analysis.sweep import run_points
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import pick
from kvferry.specs.scenario import Scenario

Progress = Callable[[int, int], None]


class Key(NamedTuple):
    """The key of a run: experiment, case and system, by name."""

    experiment: str
    case: str
    system: str


@dataclass(frozen=True)
class Results:
    """Every run's scenario, and its figures by metric key, with "outcome" and "why"."""

    scenarios: Mapping[Key, Scenario]
    rows: Mapping[Key, Mapping[str, Any]]

    def figure(self, key: Key, metric: str) -> float | None:
        """The figure of a run; None if the run gave none, or it does not apply."""
        value = self.rows[key].get(metric)
        return None if value is None else float(value)

    def done(self, key: Key) -> bool:
        return self.rows[key]["outcome"] == "done"


def scenarios_of(paper: Paper) -> dict[Key, Scenario]:
    """Every run of the paper's experiments. Raises InputError for a base or a setting that does not exist."""
    return {
        Key(name, case, system): _scenario(paper, experiment, Key(name, case, system))
        for name, experiment in paper.experiments.items()
        for case in experiment.cases
        for system in experiment.systems
    }


def carry_out(
    paper: Paper, folder: Path, workers: int | None = None, progress: Progress = lambda done, of: None
) -> Results:
    """Run what the folder does not hold yet, and measure what needs no run."""
    scenarios = scenarios_of(paper)
    simulated = [key for key in scenarios if paper.experiments[key.experiment].by == "simulation"]
    measured = [key for key in scenarios if key not in set(simulated)]
    table = run_points(
        [scenarios[key] for key in simulated],
        folder,
        workers,
        lambda done, of: progress(done, of + len(measured)),
        run_in_flight,
    )
    rows: dict[Key, Mapping[str, Any]] = {}
    for key, (_, row) in zip(simulated, table.iterrows(), strict=True):
        rows[key] = {str(name): value for name, value in row.items() if value == value and value is not None}
    of = len({*table["key"]}) + len(measured)
    for n, key in enumerate(measured, start=1):
        take = pick("measurement", MEASUREMENTS, paper.experiments[key.experiment].by)
        rows[key] = {"outcome": "done", **take(scenarios[key])}
        progress(of - len(measured) + n, of)
    return Results(scenarios, rows)


def _scenario(paper: Paper, experiment: ExperimentSpec, key: Key) -> Scenario:
    system = paper.systems[key.system]
    settings = {"system": system.system, "policies": dict(system.policies)}
    settings |= {**paper.settings, **experiment.settings, **experiment.cases[key.case]}
    # JSON is valid YAML, so a setting's value reaches the scenario as the paper's file has it.
    overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return load_scenario(experiment.base, overrides)
