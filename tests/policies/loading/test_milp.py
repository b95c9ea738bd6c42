"""The exact program against brute force, and its solvers against each other."""

import contextlib
import sys
import types
from dataclasses import replace
from itertools import product

import numpy as np
import pulp
import pytest

from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.milp import milp_plan
from kvferry.policies.loading.plan import Plan, Stage, TokenDependency
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.specs.errors import InputError, KvferryError


def random_problem(seed: int, shape: tuple[int, int, int], coupling: Coupling = "per_head") -> LoadProblem:
    chance = np.random.default_rng(seed)
    return LoadProblem(
        compute_s=chance.lognormal(0.0, 0.8, shape), stream_bytes=chance.lognormal(0.0, 0.8, shape), coupling=coupling
    )


def brute_force_s(problem: LoadProblem, stages: int, token_dependency: TokenDependency) -> float:
    """The least Eq. 1 over every assignment of every unit to a path and a stage that passes the check."""
    best_s = np.inf
    for choice in product(range(2 * stages), repeat=problem.units):
        plan = Plan(
            tuple(
                Stage(
                    compute=tuple(u for u, where in enumerate(choice) if where == 2 * k),
                    stream=tuple(u for u, where in enumerate(choice) if where == 2 * k + 1),
                )
                for k in range(stages)
            )
        )
        makespan_s = plan.stage_makespan_s(problem, 1.0)
        if makespan_s < best_s:
            try:
                plan.check(problem, token_dependency)
            except ValueError:
                continue
            best_s = makespan_s
    return best_s


@pytest.mark.parametrize(
    ("shape", "stages", "coupling"),
    [((2, 2, 2), 1, "per_head"), ((3, 3, 1), 1, "all_heads"), ((3, 2, 1), 2, "per_head"), ((2, 3, 1), 2, "all_heads")],
)
@pytest.mark.parametrize("token_dependency", ["all", "previous"])
@pytest.mark.parametrize("start_s", [0.0, 1.5])
def test_it_equals_brute_force(shape, stages, coupling, token_dependency, start_s):
    problem = random_problem(stages, shape, coupling)
    problem = replace(problem, start_s=start_s)
    result = milp_plan(problem, 1.0, stages=stages, relative_gap=0.0, token_dependency=token_dependency)
    result.plan.check(problem, token_dependency)
    assert result.status == "optimal"
    assert result.makespan_s == pytest.approx(brute_force_s(problem, stages, token_dependency), rel=1e-6)


def test_more_stages_do_not_shorten_a_schedule():
    # Eq. 4-5 sum inclusively, so all stages can be merged into one.
    problem = random_problem(5, (4, 3, 2))
    one = milp_plan(problem, 1.0, relative_gap=0.0)
    three = milp_plan(problem, 1.0, stages=3, relative_gap=0.0)
    three.plan.check(problem)
    assert three.makespan_s == pytest.approx(one.makespan_s, rel=1e-6)


@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
def test_its_value_lies_just_above_the_bound(coupling):
    problem = random_problem(7, (6, 8, 2), coupling)
    result = milp_plan(problem, 1.0)
    least_s = bound_s(frontier(problem), 1.0)
    assert result.makespan_s == result.plan.stage_makespan_s(problem, 1.0)
    assert result.bound_gap == pytest.approx(result.makespan_s / least_s - 1.0)
    assert 0.0 <= result.bound_gap < 0.01


def values_agree(solver: str) -> None:
    for seed in range(2):
        problem = random_problem(seed, (4, 4, 2))
        values = [milp_plan(problem, 1.0, stages=2, solver=name, relative_gap=0.0) for name in ("highs", solver)]
        values[1].plan.check(problem)
        assert values[0].makespan_s == pytest.approx(values[1].makespan_s, rel=1e-6)


@pytest.mark.skipif(not pulp.PULP_CBC_CMD(msg=False).available(), reason="PuLP brings no CBC for this platform")
def test_highs_and_cbc_agree():
    values_agree("cbc")


def test_highs_and_gurobi_agree():
    pytest.importorskip("gurobipy", reason="gurobipy is not installed")
    values_agree("gurobi")


def test_a_missing_gurobi_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(InputError, match="needs the package gurobipy .*; try solver 'highs'"):
        milp_plan(random_problem(0, (2, 2, 1)), 1.0, solver="gurobi")


def test_a_refused_size_names_the_licence(monkeypatch):
    class GurobiError(Exception):
        pass

    class Refusing(pulp.LpSolver):
        def __init__(self, **options: object) -> None:
            super().__init__()

        def actualSolve(self, lp: pulp.LpProblem) -> int:
            raise GurobiError("Model too large for size-limited license")

    gurobipy = types.SimpleNamespace(GurobiError=GurobiError, Env=lambda params: contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "gurobipy", gurobipy)
    monkeypatch.setattr(pulp, "GUROBI", Refusing)
    # 4 units, 1 stage: 8 choices and a length; 2 for the length, 4 for Eq. 2, 2 for Eq. 5
    with pytest.raises(InputError, match=r"9 variables and 8 constraints \(Model too large.*2,000.*'highs'"):
        milp_plan(random_problem(0, (2, 2, 1)), 1.0, solver="gurobi")


def test_out_of_time_with_nothing_found_says_what_to_do():
    with pytest.raises(KvferryError, match="units within 0.0 s: give it more,"):
        milp_plan(random_problem(0, (10, 10, 4)), 1.0, stages=4, time_limit_s=0.0)
    with pytest.raises(KvferryError, match="units within 0 nodes: give it more,"):
        milp_plan(random_problem(0, (10, 10, 4)), 1.0, stages=2, node_limit=0)


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_limit_of_nodes_stops_at_the_same_plan(solver):
    problem = random_problem(0, (6, 6, 2))
    first, second = (milp_plan(problem, 1.0, stages=2, solver=solver, node_limit=1, relative_gap=0.0) for _ in range(2))
    assert first.status == "stopped"
    assert first.reproducible
    assert first == second
    first.plan.check(problem)


def test_a_limit_of_time_is_reported_where_it_stopped_the_solver():
    assert milp_plan(random_problem(0, (2, 2, 1)), 1.0, time_limit_s=60.0).reproducible
    with pytest.raises(InputError, match="node_limit: -1"):
        milp_plan(random_problem(0, (2, 2, 1)), 1.0, node_limit=-1)


def test_unknown_solvers_and_no_stages_are_named():
    problem = random_problem(0, (2, 2, 1))
    with pytest.raises(InputError, match="unknown MILP solver 'HiGHS'"):
        milp_plan(problem, 1.0, solver="HiGHS")
    with pytest.raises(InputError, match="stages: 0"):
        milp_plan(problem, 1.0, stages=0)
