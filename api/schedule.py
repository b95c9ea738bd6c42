"""Schedulers on one loading problem: what each plan promises, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvferry.analysis.envelope import provenance_of, versions
from kvferry.analysis.remarks import how_known
from kvferry.api.scenario import Settings, Source, check_workload, load
from kvferry.backends.sim.parts import ModelledContexts
from kvferry.pipelines.loading.stage import price_s
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.loading.workload import Requests
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.run import run_scenario
from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.milp import MilpResult, milp_plan
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.staged import SCHEDULES, Planner, Staged
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace, load_trace

if TYPE_CHECKING:
    import pandas as pd

# The MILP of a whole context would take minutes to hours to prove; it is stopped and its gap is shown.
MILP_TIME_LIMIT_S = 60.0


@dataclass(frozen=True, eq=False)
class Schedules:
    """Schedulers compared. As the last value of a notebook's cell it shows its table.

    ``rows``: by schedule ``solve_s``, ``makespan_s``, ``completion_s``, ``bound_s``, ``load_s`` in seconds, and
    ``bound_gap`` and ``regret`` as shares; None where there is no figure, and then ``why`` says why.
    """

    scenario: Scenario
    rows: tuple[Mapping[str, Any], ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per schedule, by its name."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows]).set_index("schedule")

    @property
    def remarks(self) -> list[str]:
        """What a reader should know, above all that the device's profile was not measured."""
        note = how_known(self.scenario.device)
        return [note] if note else []

    @property
    def envelope(self) -> dict[str, Any]:
        """What ``kvferry schedule --json`` prints."""
        return {
            "scenario": self.scenario.name,
            "seed": self.scenario.seed,
            "versions": versions(),
            "schedules": [dict(row) for row in self.rows],
            "provenance": provenance_of(self.scenario.device, self.scenario.model),
        }

    def __repr__(self) -> str:
        return f"{self.scenario.name}: {len(self.rows)} schedules"

    def _repr_html_(self) -> str:
        return str(self.table.to_html())


@naming_plugins()
def schedule(
    source: Source, settings: Settings = (), *, seed: int | None = None, solver: str | None = None
) -> Schedules:
    """Compares all schedulers on a scenario's first request, also those of plugins.

    `source`, `settings` and `seed` as in ``load``. `solver`: "highs", "cbc" or "gurobi" solves the MILP, too. What is
    planned is at the link's mean rate and by estimated costs; each plan is then carried out to the letter over the link
    as it varies.

    Raises InputError as ``load`` does, for a scenario that loads no context, and for a solver that there is not.
    """
    loaded = load(source, settings, seed=seed)
    check_workload(loaded, "context-reuse", "kvferry schedule", "quickstart")
    return Schedules(loaded, tuple(compare_schedules(loaded, solver)))


@naming_plugins()
def compare_schedules(scenario: Scenario, solver: str | None = None) -> list[dict[str, Any]]:
    """A row for each ``schedule``, for the first request of a scenario; the MILP's too when a `solver` is named.

    ``solve_s``: wall time to plan. ``makespan_s``: Eq. 1 at the planned rates; ``completion_s``: the same with every
    dependency waited for. ``bound_s``: no plan can be faster at that rate, by the estimated costs, and ``bound_gap`` is
    how far above it the makespan is. ``load_s``: the plan carried out to the letter in the scenario's world, whose
    link varies; ``regret``: over the clairvoyant bound there. Both are None where it could not be, and ``outcome`` and
    ``why`` say why. ``note`` stands where the solver ran out of wall time, as another run may find another plan.
    Raises InputError for an unknown solver, KeyboardInterrupt where Ctrl-C ends one of the runs.
    """
    link = link_trace(scenario.link)
    single = scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"requests": 1, "turns": 1})})
    system = replace(SYSTEMS["sparkv"], settings={"adapt": False})
    stored = ModelledContexts(single, system.codec).stored
    estimate_s = price_s(scenario, scenario.costs.estimate)
    start_s = scenario.device.processors[scenario.device.main].load_s
    requests = Requests(single, system, link.mean(), estimate_s, stored, None, _available(scenario), start_s)
    request = requests.request(0)
    start = request.outlook.at_start(0.0, 1)
    problem = start.planned(request.problem)
    planners = {name: planner for name, planner in SCHEDULES.items() if name != "milp"}
    rows = [{"schedule": name, **_row(single, problem, plan, start)} for name, plan in planners.items()]
    if solver is not None:
        solved: list[MilpResult] = []

        def milp(problem: LoadProblem, bytes_per_s: float) -> Plan:
            solved.append(milp_plan(problem, bytes_per_s, solver=solver, time_limit_s=MILP_TIME_LIMIT_S))
            return solved[0].plan

        rows.append({"schedule": f"milp ({solver})", **_row(single, problem, milp, start)})
        if not solved[0].reproducible:
            rows[-1]["note"] = f"not reproducible: the solver was stopped after {MILP_TIME_LIMIT_S:g} s of wall time"
    return rows


def _available(scenario: Scenario) -> Callable[[float], float]:
    load = scenario.load
    if load is None or (load.processor or scenario.device.main) != scenario.device.main:
        return lambda now_s: 1.0
    taken = load_trace(load)
    return taken.complement().rate_at


def _row(scenario: Scenario, problem: LoadProblem, planner: Planner, start: LoadFacts) -> dict[str, Any]:
    # Planners reckon in seconds of an idle processor.
    bytes_per_s, speed = start.planned_exchange, start.planned_speed
    began_s = perf_counter()
    plan = planner(problem, bytes_per_s)
    solve_s = perf_counter() - began_s
    least_s = bound_s(frontier(problem), bytes_per_s) / speed
    makespan_s = plan.stage_makespan_s(problem, bytes_per_s) / speed
    strict = replace(SYSTEMS["sparkv"], loader=lambda: Staged(lambda *_: plan, adapt=False), settings={})
    run = run_scenario(scenario, system=strict)
    if run.interrupted:
        raise KeyboardInterrupt  # the user has no use for the other schedules
    load_s = regret = None
    for record in run.requests:
        assert record.loaded_s is not None
        assert record.bound_s is not None
        load_s = record.loaded_s - record.arrival_s
        regret = load_s / record.bound_s - 1
    return {
        "solve_s": solve_s,
        "makespan_s": makespan_s,
        "completion_s": plan.completion_s(problem, bytes_per_s) / speed,
        "bound_s": least_s,
        "bound_gap": makespan_s / least_s - 1,
        "load_s": load_s,
        "regret": regret,
        **({} if run.outcome == "done" else {"outcome": run.outcome, "why": run.why}),
    }
