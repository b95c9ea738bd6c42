"""A paper's experiments carried out: every case under every system, with its figures."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from kvferry.analysis.code_version import code_version
from kvferry.analysis.executors.choice import InProcess, executor_for
from kvferry.analysis.journal import Row
from kvferry.analysis.metrics import finish_s
from kvferry.analysis.occupancy import union
from kvferry.analysis.point import Point, Work
from kvferry.analysis.reproduction.kin import kin_of
from kvferry.analysis.reproduction.measurements import MEASUREMENTS, OF_WALL_TIME
from kvferry.analysis.reproduction.paper import ExperimentSpec, Key, Paper
from kvferry.analysis.sweep import run_points
from kvferry.machine.span import Span
from kvferry.pipelines.plugins import take_up, used
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_whole
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import KvferryError, pick
from kvferry.specs.scenario import Scenario


def run_in_flight(scenario: Scenario) -> Run:
    """The scenario's run, its energy without what the idle device draws while no request is in flight."""
    run = run_whole(scenario)
    device = scenario.device
    idle_w = {"base": device.base_w, "network": device.network.idle_w}
    idle_w |= {name: processor.idle_w for name, processor in device.processors.items()}
    starts, ends = union(Span("request", "", r.arrival_s, finish_s(r) or r.arrival_s) for r in run.requests)
    idle_s = run.duration_s - float((ends - starts).sum())
    energy_j = {part: energy_j - idle_w.get(part, 0.0) * idle_s for part, energy_j in run.energy_j.items()}
    return replace(run, energy_j=energy_j)


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Results:
    """Every run's scenario, with its first seed; and for each seed that it was run with (``Paper.seeds_of_run``) its
    figures by metric key, "outcome" and "why"."""

    scenarios: Mapping[Key, Scenario]
    rows: Mapping[Key, Sequence[Mapping[str, Any]]]

    def of_seeds(self, key: Key, metric: str) -> list[float | None]:
        """A figure of a run with each of its seeds; None where that gave none, or it does not apply. Empty: not run."""
        return [None if row.get(metric) is None else float(row[metric]) for row in self.rows.get(key, ())]

    def figure(self, key: Key, metric: str) -> float | None:
        """The median over the seeds; None if no seed gave one."""
        known = [figure for figure in self.of_seeds(key, metric) if figure is not None]
        return median(known) if known else None

    def outcome(self, key: Key) -> str:
        """ "done", or the outcome of the first seed that ended otherwise."""
        return next((str(row["outcome"]) for row in self.rows[key] if row["outcome"] != "done"), "done")


def scenarios_of(paper: Paper) -> dict[Key, Scenario]:
    """Every run of the paper's experiments, with the first of its seeds. Raises InputError for a base or a setting that
    does not exist."""
    return {
        key: _with_seed(_scenario(paper, experiment, key), paper.seeds_of(name)[0])
        for name, experiment in paper.experiments.items()
        for key in (Key(name, case, system) for case in experiment.cases for system in experiment.systems)
        if key.case in experiment.cases_of(key.system)
    }


def carry_out(
    paper: Paper, folder: Path, workers: int | None = None, progress: Progress = lambda done, of: None
) -> Results:
    """Run what the folder does not hold yet, with every seed of each run, and measure what needs none."""
    scenarios = scenarios_of(paper)
    points = [
        (key, _with_seed(scenario, seed)) for key, scenario in scenarios.items() for seed in paper.seeds_of_run(key)
    ]
    simulated = [(key, point) for key, point in points if paper.experiments[key.experiment].by == "simulation"]
    # All systems over the same contexts one after the other: what is drawn of them is kept for a while.
    simulated.sort(key=lambda one: (*one[0][:2], one[1].seed))
    kin = [kin_of(scenario) for _, scenario in simulated]
    in_order = sorted(range(len(kin)), key=kin.__getitem__)
    simulated, kin = [simulated[n] for n in in_order], [kin[n] for n in in_order]
    measured = [(key, point) for key, point in points if paper.experiments[key.experiment].by != "simulation"]
    table = run_points(
        [point for _, point in simulated],
        folder,
        workers,
        lambda done, of: progress(done, of + len(measured)),
        run_in_flight,
        kin=kin,
    )
    rows: dict[Key, list[Mapping[str, Any]]] = {key: [] for key in scenarios}
    for (key, _), (_, row) in zip(simulated, table.iterrows(), strict=True):
        rows[key].append({str(name): value for name, value in row.items() if value == value and value is not None})
    of = len({*table["key"]}) + len(measured)
    for n, (key, figures) in enumerate(_measured(paper, measured, workers), start=1):
        rows[key].append({"outcome": "done", **figures})
        progress(of - len(measured) + n, of)
    return Results(scenarios, rows)


def _measured(
    paper: Paper, points: Sequence[tuple[Key, Scenario]], workers: int | None
) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """Yields what is measured of each point, in their order within a measurement: on all cores, but for measurements of
    wall time, which have the machine to themselves."""
    by_measurement: dict[str, list[tuple[Key, Scenario]]] = {}
    for key, scenario in points:
        by_measurement.setdefault(paper.experiments[key.experiment].by, []).append((key, scenario))
    for name, of_it in by_measurement.items():
        pick("measurement", MEASUREMENTS, name)
        where = InProcess() if name in OF_WALL_TIME else executor_for(None, workers)
        tasks = [Point.of(scenario, str(n)) for n, (_, scenario) in enumerate(of_it)]
        found: dict[int, Mapping[str, Any]] = {}
        with (
            where,
            closing(where.rows(tasks, Measuring(run_whole, code_version(), used(), measurement=name))) as rows,
        ):
            for row in rows:
                if row.get("outcome") == "failed":
                    raise KvferryError(f"{name} of {of_it[int(row['key'])][0].case}: {row['why']}")
                found[int(row["key"])] = {figure: value for figure, value in row.items() if figure != "key"}
        yield from ((key, found[n]) for n, (key, _) in enumerate(of_it))


@dataclass(frozen=True, slots=True)
class Measuring(Work):
    """The work of taking a measurement, by its name, of a point's scenario: a row of its figures. Errors are raised."""

    measurement: str = ""

    def __call__(self, point: Point) -> Row:
        take_up(self.plugins)
        return {"key": point.key, **MEASUREMENTS[self.measurement](point.scenario())}


def _with_seed(scenario: Scenario, seed: int | None) -> Scenario:
    return scenario if seed is None else scenario.model_copy(update={"seed": seed})


def _scenario(paper: Paper, experiment: ExperimentSpec, key: Key) -> Scenario:
    system = paper.systems[key.system]
    settings = {"system": system.system, "policies": dict(system.policies)}
    settings |= {**paper.settings, **experiment.settings, **experiment.cases[key.case]}
    settings |= experiment.own.get(key.system, {}).get(key.case, {})
    # JSON is valid YAML, so a setting's value reaches the scenario as the paper's file has it.
    overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return load_scenario(experiment.base, overrides)
