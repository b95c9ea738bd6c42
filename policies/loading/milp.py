"""The exact schedule: SparKV's mixed-integer program (Eq. 1-5), solved by HiGHS, CBC or Gurobi through PuLP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.plan import Plan, TokenDependency, by_storage, ordered_stage
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.three_way import three_way_bound_s
from kvferry.specs.errors import InputError, KvferryError, unknown_name

if TYPE_CHECKING:
    import pulp


@dataclass(frozen=True, slots=True)
class MilpResult:
    """A plan, its value by Eq. 1, how far that may be above the proven bound, and why the solver stopped.

    ``optimal``: within the requested relative gap.
    """

    plan: Plan
    makespan_s: float
    bound_gap: float
    status: Literal["optimal", "stopped"]
    reproducible: bool


def milp_plan(
    problem: LoadProblem,
    bytes_per_s: float,
    *,
    stages: int = 1,
    read_bytes_per_s: float = math.inf,
    solver: str = "highs",
    node_limit: int | None = None,
    time_limit_s: float | None = None,
    relative_gap: float = 1e-4,
    token_dependency: TokenDependency = "all",
) -> MilpResult:
    """Minimise Eq. 1 over ``stages`` decision stages.

    Eq. 4-5 sum inclusively to k: a stage unlocks its own work. By Eq. 2 everything is loaded by the last
    stage, so its token dependencies always hold, and merging all stages into one keeps a schedule feasible
    and makes it no longer. One stage is therefore enough for the optimum; more only cost time.
    Units that lie on local storage (``problem.read_bytes``) may come from there: a third path, for small problems.
    ``token_dependency``: "all" earlier token chunks as the text says, or the "previous" one as Eq. 4 reads.

    ``node_limit``: how many nodes of its search tree the solver may visit; it stops at the same plan every time.
    ``time_limit_s`` is wall time, which stops at whatever plan a machine has found by then.

    Raises ``InputError`` for less than one stage, a negative limit, and a solver that is unknown, absent or refuses
    the size, ``KvferryError`` if a limit is reached before any schedule was found.
    """
    if solver not in SOLVERS:
        raise unknown_name("MILP solver", solver, SOLVERS)
    if stages < 1:
        raise InputError(f"stages: {stages} is not possible; 1 is enough for the optimum")
    if node_limit is not None and node_limit < 0:
        raise InputError(f"node_limit: {node_limit} is not possible; 0 leaves what is found at the root")
    if problem.read_bytes is None:
        least_s = bound_s(frontier(problem), bytes_per_s)
    else:
        least_s = three_way_bound_s(problem, bytes_per_s, read_bytes_per_s)
    model = _Model(problem, bytes_per_s, read_bytes_per_s, stages, token_dependency, unit_s=least_s or 1.0)
    SOLVERS[solver](model.program, Limits(node_limit, time_limit_s, relative_gap))

    # PuLP: 1 is a solution proven optimal, 2 one that was found before the limit.
    if model.program.sol_status not in (1, 2):
        both = ((node_limit, "nodes"), (time_limit_s, "s"))
        reached = [f"{limit:,} {unit}" for limit, unit in both if limit is not None]
        raise KvferryError(
            f"{solver} found no schedule of {problem.units} units within {' and '.join(reached)}: give it more,"
            " or use the greedy or the chain, which always return one"
        )
    optimal = model.program.sol_status == 1
    plan = model.plan()
    makespan_s = plan.stage_makespan_s(problem, bytes_per_s, read_bytes_per_s)
    return MilpResult(
        plan=plan,
        makespan_s=makespan_s,
        bound_gap=makespan_s / least_s - 1.0 if least_s else 0.0,
        status="optimal" if optimal else "stopped",
        reproducible=optimal or time_limit_s is None,
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """When a solver stops: after this many nodes, after so much wall time, or this near to the optimum."""

    nodes: int | None
    time_s: float | None
    relative_gap: float


class _Model:
    """Eq. 1-5 in PuLP's terms. Times are given in units of the bound, so that tolerances mean the same anywhere."""

    def __init__(
        self,
        problem: LoadProblem,
        bytes_per_s: float,
        read_bytes_per_s: float,
        stages: int,
        token_dependency: TokenDependency,
        unit_s: float,
    ) -> None:
        import pulp

        self.problem, self.stages = problem, stages
        self.program = pulp.LpProblem("kv_loading", pulp.LpMinimize)
        units = range(problem.units)
        self.computed = [[self._choice(f"compute_{u}_{k}") for k in range(stages)] for u in units]
        self.streamed = [self._brought("stream", u, problem.stream_bytes) for u in units]
        self.read = [self._brought("read", u, problem.read_bytes) for u in units]
        lengths = [self.program.add_variable(f"length_{k}", lowBound=0) for k in range(stages)]
        self.program += pulp.lpSum(lengths)

        compute_s = (problem.compute_s.ravel() / unit_s).tolist()
        stream_s = (problem.stream_bytes.ravel() / bytes_per_s / unit_s).tolist()
        paths = [(compute_s, self.computed), (stream_s, self.streamed)]
        if problem.read_bytes is not None:
            paths.append(((problem.read_bytes.ravel() / read_bytes_per_s / unit_s).tolist(), self.read))
        for k, length in enumerate(lengths):
            for times, chosen in paths:
                taken = [(chosen[u][k], times[u]) for u in units if chosen[u]]
                self.program += pulp.LpAffineExpression(taken) <= length
        for u in units:
            self.program += pulp.lpSum(self.computed[u] + self.streamed[u] + self.read[u]) == 1
        if problem.start_s:
            self._start(lengths, compute_s, problem.start_s / unit_s)
        self._layer_dependencies()
        self._token_dependencies(token_dependency)

    def _start(self, lengths: list[pulp.LpVariable], compute_s: list[float], start_s: float) -> None:
        """A stage that computes anything ends no sooner than the processor's start and its own work."""
        import pulp

        for k in range(self.stages):
            computes = self._choice(f"computes_{k}")
            terms = [(self.computed[u][k], compute_s[u]) for u in range(self.problem.units)]
            self.program += pulp.LpAffineExpression([*terms, (computes, start_s)]) <= pulp.lpSum(lengths[: k + 1])
            for u in range(self.problem.units):
                self.program += self.computed[u][k] <= computes

    def _layer_dependencies(self) -> None:
        """Eq. 5: the layer below was computed, in this stage or before."""
        import pulp

        for u in range(self.problem.units):
            if self.problem.place(u)[1] > 0:
                below = self.computed[u - self.problem.columns_per_chunk]
                for k in range(self.stages):
                    self.program += self.computed[u][k] <= pulp.lpSum(below[: k + 1])

    def _token_dependencies(self, token_dependency: TokenDependency) -> None:
        """Eq. 4: earlier tokens' KV has come by either path. Left out at the last stage, where Eq. 2 implies it.

        For "all", a variable per unit and stage is at most 1 if the unit and all before it in t have come.
        """
        import pulp

        problem = self.problem
        for k in range(self.stages - 1):
            ways = (self.computed, self.streamed, self.read)
            come = [pulp.lpSum(v for way in ways for v in way[u][: k + 1]) for u in range(problem.units)]
            if token_dependency == "all":
                come = self._all_come(come, k)
            for u in range(problem.units):
                t, l, c = problem.place(u)
                attended = problem.attended_layer(l)
                if t > 0 and attended is not None:
                    self.program += self.computed[u][k] <= come[problem.unit(t - 1, attended, c)]

    def _brought(self, way: str, unit: int, n_bytes: np.ndarray | None) -> list[pulp.LpVariable]:
        """Whether the unit comes this way, for each stage; empty where the way does not lead to it."""
        if n_bytes is None or not np.isfinite(n_bytes.ravel()[unit]):
            return []
        return [self._choice(f"{way}_{unit}_{k}") for k in range(self.stages)]

    def _choice(self, name: str) -> pulp.LpVariable:
        return self.program.add_variable(name, cat="Binary")

    def _all_come(self, come: list[pulp.LpAffineExpression], k: int) -> list[Any]:
        right = self.problem.layers * self.problem.columns_per_chunk
        all_come = [self.program.add_variable(f"come_{u}_{k}", 0, 1) for u in range(self.problem.units)]
        for u, variable in enumerate(all_come):
            self.program += variable <= come[u]
            if u >= right:
                self.program += variable <= all_come[u - right]
        return all_come

    def plan(self) -> Plan:
        """The schedule that the solver found; within a stage, computing waits for streams as little as can be."""
        computed, streamed, read = (self._chosen(way) for way in (self.computed, self.streamed, self.read))
        stages = (ordered_stage(self.problem, computed[k], streamed[k] | read[k]) for k in range(self.stages))
        return Plan(tuple(by_storage(stage, read[k].ravel()) for k, stage in enumerate(stages)))

    def _chosen(self, way: list[list[pulp.LpVariable]]) -> np.ndarray:
        """Whether each unit comes this way in each stage, shape [K, T, L, C]."""
        chosen = [[v.value() > 0.5 for v in row] or [False] * self.stages for row in way]
        return np.array(chosen).T.reshape(self.stages, *self.problem.compute_s.shape)


def _highs(program: pulp.LpProblem, limits: Limits) -> None:
    import pulp

    class Highs(pulp.HiGHS):  # type: ignore[misc]
        """PuLP's, which does not know the status that HiGHS has at a limit of nodes."""

        def findSolutionValues(self, lp: Any) -> tuple[int, int]:
            try:
                status: tuple[int, int] = super().findSolutionValues(lp)
            except KeyError:
                if lp.solverModel.getInfo().primal_solution_status == _FEASIBLE:
                    return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
            return status

    nodes = {} if limits.nodes is None else {"mip_max_nodes": limits.nodes}
    # One thread: the same schedule every time. No restart at the root: behind one HiGHS 1.15.1 called a plan optimal
    # that was 6 % above it, in one of 1,010 small problems.
    options = {"threads": 1, "mip_allow_restart": False, **nodes}
    program.solve(Highs(msg=False, timeLimit=limits.time_s, gapRel=limits.relative_gap, **options))


def _cbc(program: pulp.LpProblem, limits: Limits) -> None:
    import pulp

    # CBC takes no limit of 0 nodes; 1 is the root.
    nodes = None if limits.nodes is None else max(1, limits.nodes)
    cbc = pulp.PULP_CBC_CMD(msg=False, timeLimit=limits.time_s, gapRel=limits.relative_gap, threads=1, maxNodes=nodes)
    if not cbc.available():
        raise InputError("solver 'cbc': PuLP finds no CBC program for this platform; try solver 'highs'")
    program.solve(cbc)


def _gurobi(program: pulp.LpProblem, limits: Limits) -> None:
    import pulp

    try:
        import gurobipy
    except ImportError as error:
        raise InputError(
            "solver 'gurobi' needs the package gurobipy (pip install '.[gurobi]'); try solver 'highs'"
        ) from error
    try:
        # Its own environment: the default one prints a banner to standard output, where results go.
        with gurobipy.Env(params={"OutputFlag": 0, "Threads": 1}) as quiet:
            nodes = {} if limits.nodes is None else {"NodeLimit": limits.nodes}
            gap = limits.relative_gap
            program.solve(pulp.GUROBI(msg=False, timeLimit=limits.time_s, gapRel=gap, env=quiet, **nodes))
    except gurobipy.GurobiError as error:
        raise InputError(
            f"Gurobi refused a model of {program.numVariables()} variables and {program.numConstraints()} constraints"
            f" ({error}). Its free licence ends at 2,000 of either; try solver 'highs'"
        ) from error


# HiGHS: there is a solution, optimal or not.
_FEASIBLE = 2
SOLVERS: dict[str, Callable[[pulp.LpProblem, Limits], None]] = {
    "highs": _highs,
    "cbc": _cbc,
    "gurobi": _gurobi,
}
