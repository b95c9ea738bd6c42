"""The chain and the split, by hand, against every staircase, and beside the bound."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.chain import _nested_depths, chain_labels, chain_order, chain_plan
from kvferry.policies.loading.greedy import greedy_plan
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.split import split_plan


def heterogeneous(seed: int, shape: tuple[int, int, int], coupling: Coupling, token_spread: float = 0.0) -> LoadProblem:
    """Costs that grow with t, heads and layers that differ; token chunks that differ by ``token_spread``."""
    chance = np.random.default_rng(seed)
    tokens = shape[0]
    rank = np.arange(1, tokens + 1).reshape(-1, 1, 1)
    of_heads = chance.lognormal(0.0, 0.8, (1, *shape[1:])) * chance.lognormal(0.0, token_spread, (tokens, 1, 1))
    return LoadProblem(
        compute_s=1e-4 + 4e-4 * rank / tokens * of_heads * chance.lognormal(0.0, 0.3, shape),
        stream_bytes=4e5 * chance.lognormal(0.0, 0.5, shape) * chance.lognormal(0.0, token_spread, (tokens, 1, 1)),
        coupling=coupling,
    )


def test_the_cheaper_column_is_computed_first_and_meets_the_link():
    # Two layers of one token chunk: head 0 costs 1 s, then 2 s; head 1 costs 2 s, then 4 s; 30 B each.
    # Seconds per byte: 1/30, 2/30, 2/30, 4/30, so (l, c) comes in the order (0, 0), then the tie (0, 1), (1, 0) by
    # place, then (1, 1).
    problem = LoadProblem(
        compute_s=np.array([[[1.0, 2.0], [2.0, 4.0]]]),
        stream_bytes=np.full((1, 2, 2), 30.0),
        coupling="per_head",
    )
    assert chain_order(problem).tolist() == [0, 1, 2, 3]
    # 15 B/s: cuts 0..4 cost max(0, 8), max(1, 6), max(3, 4), max(5, 2), max(9, 0); the best is 2.
    plan = chain_plan(problem, 15.0)
    assert plan.compute == (0, 1)
    assert plan.stream == (3, 2)
    assert plan.stage_makespan_s(problem, 15.0) == pytest.approx(4.0)


def test_an_expensive_predecessor_holds_later_tokens_back():
    # Token 0 costs 9 s for 9 B, token 1 costs 1 s for 9 B (two layers each). Token 1 may not be computed alone, and
    # computing token 0 takes 9 s a layer: at 9 B/s all is streamed, in 4 s.
    compute_s = np.array([[[9.0], [9.0]], [[1.0], [1.0]]])
    problem = LoadProblem(compute_s=compute_s, stream_bytes=np.full((2, 2, 1), 9.0), coupling="per_head")
    plan = chain_plan(problem, 9.0)
    assert plan.compute == ()
    assert plan.completion_s(problem, 9.0) == pytest.approx(4.0)


@pytest.mark.parametrize("seed", range(4))
def test_depths_are_the_best_of_all_staircases(seed):
    problem = heterogeneous(seed, (3, 3, 2), "per_head", token_spread=1.0)
    multipliers = np.linspace(0.05, 0.95, 19)
    depths = _nested_depths(problem, multipliers)
    work = problem.compute_s / problem.compute_s.sum()
    saved = problem.stream_bytes / problem.stream_bytes.sum()

    def cost(multiplier: float, staircase: np.ndarray, c: int) -> float:
        computed = np.arange(3)[None, :] < staircase[:, None]
        gain = (1.0 - multiplier) * work[:, :, c] - multiplier * saved[:, :, c]
        return float(gain[computed].sum())

    staircases = [np.array(s) for s in product(range(4), repeat=3) if s[0] >= s[1] >= s[2]]
    for g, multiplier in enumerate(multipliers):
        for c in range(2):
            best = min(cost(multiplier, staircase, c) for staircase in staircases)
            assert cost(multiplier, depths[:, c, g], c) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
@pytest.mark.parametrize("token_spread", [0.0, 1.0])
def test_labels_never_fall_along_tokens_or_layers(coupling, token_spread):
    labels = chain_labels(heterogeneous(3, (12, 10, 3), coupling, token_spread))
    assert (np.diff(labels, axis=0) >= 0).all()
    assert (np.diff(labels, axis=1) >= 0).all()
    assert len(np.unique(labels)) > 20


def test_equal_units_are_ordered_by_place():
    # 0.1 s and 0.3 B each: sums of these differ in their last digits, and that must not decide.
    problem = LoadProblem(
        compute_s=np.full((20, 36, 2), 0.1), stream_bytes=np.full((20, 36, 2), 0.3), coupling="per_head"
    )
    assert chain_order(problem).tolist() == list(range(1440))


@pytest.mark.parametrize("share", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_chain_comes_within_a_percent_of_the_bound(seed, share):
    problem = heterogeneous(seed, (20, 36, 8), "per_head")
    bytes_per_s = share * problem.stream_bytes.sum() / problem.compute_s.sum()
    plan = chain_plan(problem, bytes_per_s)
    least_s = bound_s(frontier(problem), bytes_per_s)
    assert least_s <= plan.stage_makespan_s(problem, bytes_per_s) <= 1.01 * least_s
    # Nothing in a chain waits for the link.
    assert plan.completion_s(problem, bytes_per_s) == pytest.approx(plan.stage_makespan_s(problem, bytes_per_s))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 2), (5, 1, 2), (4, 2, 1)])
@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
def test_small_shapes_work(shape, coupling):
    problem = heterogeneous(0, shape, coupling)
    chain_plan(problem, 1e9).check(problem)


def test_zero_sizes_and_zero_costs_are_no_obstacle():
    problem = LoadProblem(compute_s=np.zeros((2, 2, 1)), stream_bytes=np.zeros((2, 2, 1)), coupling="per_head")
    assert sorted(chain_order(problem).tolist()) == [0, 1, 2, 3]
    assert chain_plan(problem, 1.0).stage_makespan_s(problem, 1.0) == 0.0


@pytest.mark.parametrize("planner", [chain_plan, split_plan, greedy_plan])
def test_the_link_takes_what_the_processors_start_leaves_it(planner):
    # Four token chunks of 1 s or 10 B, at 10 B/s: two are computed, two come. Behind a start of 1 s the processor has
    # one after 2 s, while three come in 3 s; or two after 3 s, while two come: 3 s either way, the fewest computed.
    # Behind 4 s nothing is computed.
    compute_s = np.ones((4, 1, 1))
    problem = LoadProblem(compute_s=compute_s, stream_bytes=10 * compute_s, coupling="all_heads")
    for start_s, computed, ends_s in ((0.0, 2, 2.0), (1.0, 1, 3.0), (4.0, 0, 4.0)):
        started = replace(problem, start_s=start_s)
        plan = planner(started, 10.0)
        assert len(plan.compute) == computed
        assert plan.stage_makespan_s(started, 10.0) == pytest.approx(ends_s)
