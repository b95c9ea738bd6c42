"""The greedy's readings: by hand, and equal to the paper's text followed word by word."""

from collections.abc import Callable

import numpy as np
import pytest

from kvferry.policies.loading.greedy import READINGS, greedy_plan
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.specs.errors import InputError


class ByTheText:
    """The slow path: every score worked out anew for every choice."""

    def __init__(self, problem: LoadProblem, bytes_per_s: float, own: float, unlock: float) -> None:
        self.problem, self.own, self.unlock = problem, own, unlock
        self.compute_s = problem.compute_s.ravel()
        self.stream_s = problem.stream_bytes.ravel() / bytes_per_s
        self.computed: set[int] = set()
        self.loaded: set[int] = set()

    def ready(self, loaded: set[int], computed: set[int]) -> set[int]:
        problem, found = self.problem, set()
        for unit in set(range(problem.units)) - loaded:
            t, l, c = problem.place(unit)
            attended = problem.attended_layer(l)
            below = l == 0 or problem.unit(t, l - 1, c) in computed
            before = attended is None or all(problem.unit(s, attended, c) in loaded for s in range(t))
            if below and before:
                found.add(unit)
        return found

    def unlocks(self, unit: int, computed: set[int]) -> float:
        now = self.ready(self.loaded, self.computed)
        then = self.ready(self.loaded | {unit}, computed)
        return sum(self.unlock / self.compute_s[other] for other in then - now - {unit})

    def compute(self, budget_s: float) -> list[int]:
        taken: list[int] = []
        while self.compute_s[taken].sum() < budget_s and (ready := self.ready(self.loaded, self.computed)):
            score = {u: self.own / self.compute_s[u] + self.unlocks(u, self.computed | {u}) for u in ready}
            unit = max(sorted(ready), key=lambda u: round(score[u], 9))
            self.computed.add(unit)
            self.loaded.add(unit)
            taken.append(unit)
        return taken

    def stream(self, budget_s: float, allowed: Callable[[int], bool]) -> list[int]:
        taken: list[int] = []
        while self.stream_s[taken].sum() < budget_s:
            left = [u for u in range(self.problem.units) if u not in self.loaded and allowed(u)]
            if not left:
                break
            score = {u: self.own / self.stream_s[u] + self.unlocks(u, self.computed) for u in left}
            unit = max(left, key=lambda u: round(score[u], 9))
            self.loaded.add(unit)
            taken.append(unit)
        return taken

    def topmost(self, unit: int) -> bool:
        t, l, c = self.problem.place(unit)
        return all(self.problem.unit(t, above, c) in self.loaded for above in range(l + 1, self.problem.layers))

    def staged(self, budget_s: float, allowed: Callable[[int], bool]) -> Plan:
        stages = []
        while len(self.loaded) < self.problem.units:
            computed = self.compute(budget_s)
            stages.append(Stage(tuple(computed), tuple(self.stream(budget_s, allowed))))
        return Plan(tuple(stages))


def random_problem(seed: int, coupling: Coupling) -> LoadProblem:
    chance = np.random.default_rng(seed)
    shape = (4, 4, 2 if coupling == "per_head" else 1)
    return LoadProblem(
        compute_s=chance.lognormal(0.0, 0.7, shape), stream_bytes=chance.lognormal(0.0, 0.7, shape), coupling=coupling
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.2)])
def test_staged_readings_follow_the_text(seed, coupling, weights):
    problem = random_problem(seed, coupling)
    own, unlock = weights
    for reading in ("literal", "top-down"):
        slow = ByTheText(problem, 1.0, own, unlock)
        expected = slow.staged(2.5, slow.topmost if reading == "top-down" else lambda unit: True)
        plan = greedy_plan(problem, 1.0, reading=reading, stage_budget_s=2.5, own_weight=own, unlock_weight=unlock)
        assert plan == expected
        plan.check(problem)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
def test_one_stage_has_the_budget_with_the_least_makespan(seed, coupling):
    problem = random_problem(seed, coupling)
    plan = greedy_plan(problem, 1.0)
    plan.check(problem)
    makespans = []
    for budget_s in np.linspace(0.0, problem.compute_s.sum(), 80):
        computed = ByTheText(problem, 1.0, 1.0, 1.0).compute(budget_s) if budget_s else []
        streamed = sorted(set(range(problem.units)) - set(computed))
        makespans.append(Plan((Stage(tuple(computed), tuple(streamed)),)).stage_makespan_s(problem, 1.0))
    assert plan.stage_makespan_s(problem, 1.0) == pytest.approx(min(makespans))


def test_the_literal_reading_by_hand():
    # Two layers of one token chunk: compute 1 s each, stream 4 s and 1 s; budget 1 s. Stage 0 computes (0, 0), the only
    # ready one (w_c = 1 + 1 for unlocking (0, 1)); the link then takes (0, 1), so there is nothing left to compute.
    problem = LoadProblem(compute_s=np.ones((1, 2, 1)), stream_bytes=np.array([[[4.0], [1.0]]]), coupling="per_head")
    assert greedy_plan(problem, 1.0, reading="literal", stage_budget_s=1.0) == Plan((Stage((0,), (1,)),))


def test_unlocking_pays_for_a_dearer_stream():
    # Computing (0, 0) uses up the budget. (1, 0) is ready then and (2, 0) waits for it: w_s of (1, 0) is
    # 1/2 + 1/10, of (2, 0) 1/1.9, which is less, but more than 1/2 alone.
    problem = LoadProblem(
        compute_s=np.array([[[1.0], [9.0]], [[50.0], [9.0]], [[10.0], [9.0]]]),
        stream_bytes=np.array([[[9.0], [9.0]], [[2.0], [9.0]], [[1.9], [9.0]]]),
        coupling="per_head",
    )
    eager = greedy_plan(problem, 1.0, reading="literal", stage_budget_s=1.0)
    assert eager.stages[0] == Stage(compute=(0,), stream=(2,))
    blind = greedy_plan(problem, 1.0, reading="literal", stage_budget_s=1.0, unlock_weight=0.0)
    assert blind.stages[0] == Stage(compute=(0,), stream=(4,))


def test_top_down_leaves_columns_open():
    problem = random_problem(0, "per_head")
    plan = greedy_plan(problem, 1.0, reading="top-down", stage_budget_s=1.0)
    layers = [problem.place(unit)[1] for unit in plan.stream]
    columns = [(problem.place(unit)[0], problem.place(unit)[2]) for unit in plan.stream]
    for column in set(columns):
        in_column = [l for l, place in zip(layers, columns, strict=True) if place == column]
        assert in_column == sorted(in_column, reverse=True)


def test_last_first_streams_what_one_stage_streams_from_the_last_token_chunk_on():
    problem = random_problem(0, "per_head")
    one_stage, last_first = (greedy_plan(problem, 1.0, reading=reading) for reading in ("one-stage", "last-first"))
    assert last_first.compute == one_stage.compute
    assert sorted(last_first.stream) == sorted(one_stage.stream)
    assert last_first.stage_makespan_s(problem, 1.0) == pytest.approx(one_stage.stage_makespan_s(problem, 1.0))
    places = [problem.place(unit)[:2] for unit in last_first.stream]
    assert places == sorted(places, reverse=True)
    assert [problem.place(unit)[:2] for unit in one_stage.stream] != places


@pytest.mark.parametrize("reading", READINGS)
def test_free_chunks_and_single_units_are_no_obstacle(reading):
    nothing = LoadProblem(compute_s=np.zeros((2, 2, 1)), stream_bytes=np.zeros((2, 2, 1)), coupling="per_head")
    greedy_plan(nothing, 1.0, reading=reading).check(nothing)
    single = LoadProblem(compute_s=np.ones((1, 1, 1)), stream_bytes=np.ones((1, 1, 1)), coupling="all_heads")
    greedy_plan(single, 1.0, reading=reading).check(single)


def test_unknown_readings_and_budgets_are_named():
    problem = random_problem(0, "per_head")
    with pytest.raises(InputError, match="Did you mean 'one-stage'"):
        greedy_plan(problem, 1.0, reading="one_stage")
    with pytest.raises(InputError, match="stage_budget_s"):
        greedy_plan(problem, 1.0, reading="literal", stage_budget_s=0.0)
