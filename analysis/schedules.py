"""One loading problem, every scheduler: what each plan promises, what it keeps, how long it took to find."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from kvferry.backends.sim.parts import ModelledContexts
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.loading.workload import Requests, price_s
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

# The MILP of a whole context would take minutes to hours to prove; it is stopped and its gap is shown.
MILP_TIME_LIMIT_S = 60.0


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
    requests = Requests(single, system, link.mean(), estimate_s, stored, available=_available(scenario))
    request = requests.request(0)
    problem, start = request.problem, request.outlook.at_start(0.0, 1)
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
    return load_trace(load).complement().rate_at


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
