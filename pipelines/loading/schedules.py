"""One loading problem, every scheduler: what each plan promises, what it keeps, how long it took to find."""

from dataclasses import replace
from time import perf_counter
from typing import Any

from kvferry.backends.sim.parts import ModelledContexts
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.loading.workload import Requests, price_s
from kvferry.pipelines.run import run_scenario
from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.milp import MilpResult, milp_plan
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.staged import SCHEDULES, Planner, Staged
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace

# The MILP of a whole context would take minutes to hours to prove; it is stopped and its gap is shown.
MILP_TIME_LIMIT_S = 60.0


def compare_schedules(scenario: Scenario, solver: str | None = None) -> list[dict[str, Any]]:
    """A row for each ``schedule``, for the first request of a scenario; the MILP's too when a `solver` is named.

    ``solve_s``: wall time to plan. ``makespan_s``: Eq. 1 at the planned rate; ``completion_s``: the same with every
    dependency waited for. ``bound_s``: no plan can be faster at that rate, by the estimated costs, and ``bound_gap`` is
    how far above it the makespan is. ``load_s``: the plan carried out to the letter in the scenario's world, whose
    link varies; ``regret``: over the clairvoyant bound there. Both are None where it could not be, and ``outcome`` and
    ``why`` tell of it. ``note`` stands where the solver ran out of wall time, as another run may find another plan.
    Raises InputError for an unknown solver.
    """
    link = link_trace(scenario.link)
    single = scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"requests": 1})})
    system = replace(SYSTEMS["sparkv"], settings={"adapt": False})
    stored = ModelledContexts(single, system.codec).stored
    request = Requests(single, system, link.mean(), price_s(scenario, scenario.costs.estimate), stored).request(0)
    problem, bytes_per_s = request.problem, request.outlook.at_start(0.0, 1).planned_exchange
    planners = {name: planner for name, planner in SCHEDULES.items() if name != "milp"}
    rows = [{"schedule": name, **_row(single, problem, plan, bytes_per_s)} for name, plan in planners.items()]
    if solver is not None:
        solved: list[MilpResult] = []

        def milp(problem: LoadProblem, bytes_per_s: float) -> Plan:
            solved.append(milp_plan(problem, bytes_per_s, solver=solver, time_limit_s=MILP_TIME_LIMIT_S))
            return solved[0].plan

        rows.append({"schedule": f"milp ({solver})", **_row(single, problem, milp, bytes_per_s)})
        if not solved[0].reproducible:
            rows[-1]["note"] = f"not reproducible: the solver was stopped after {MILP_TIME_LIMIT_S:g} s of wall time"
    return rows


def _row(scenario: Scenario, problem: LoadProblem, planner: Planner, bytes_per_s: float) -> dict[str, Any]:
    began_s = perf_counter()
    plan = planner(problem, bytes_per_s)
    solve_s = perf_counter() - began_s
    least_s = bound_s(frontier(problem), bytes_per_s)
    makespan_s = plan.stage_makespan_s(problem, bytes_per_s)
    strict = replace(SYSTEMS["sparkv"], loader=lambda: Staged(lambda *_: plan, adapt=False), settings={})
    run = run_scenario(scenario, system=strict)
    load_s = regret = None
    for record in run.requests:
        assert record.loaded_s is not None
        assert record.bound_s is not None
        load_s = record.loaded_s - record.arrival_s
        regret = load_s / record.bound_s - 1
    return {
        "solve_s": solve_s,
        "makespan_s": makespan_s,
        "completion_s": plan.completion_s(problem, bytes_per_s),
        "bound_s": least_s,
        "bound_gap": makespan_s / least_s - 1,
        "load_s": load_s,
        "regret": regret,
        **({} if run.outcome == "done" else {"outcome": run.outcome, "why": run.why}),
    }
