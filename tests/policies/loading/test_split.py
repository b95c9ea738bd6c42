"""The split, by hand, beside the bound where token chunks differ, and solved again for what is left."""

import numpy as np
import pytest

from kvferry.policies.loading.bound import bound_s, column_labels, frontier
from kvferry.policies.loading.chain import chain_plan
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.split import split_plan, split_stage


def uneven(seed: int, shape: tuple[int, int, int], coupling: Coupling) -> LoadProblem:
    """Token chunks that differ strongly in both costs."""
    chance = np.random.default_rng(seed)
    rank = np.arange(1, shape[0] + 1).reshape(-1, 1, 1)
    of_tokens = chance.lognormal(0.0, 1.0, (2, shape[0], 1, 1))
    density = chance.lognormal(0.0, 0.8, (1, *shape[1:])) * of_tokens[0]
    return LoadProblem(
        compute_s=1e-4 + 4e-4 * rank / shape[0] * density * chance.lognormal(0.0, 0.3, shape),
        stream_bytes=4e5 * chance.lognormal(0.0, 0.5, shape) * of_tokens[1],
        coupling=coupling,
    )


def dear_then_cheap() -> LoadProblem:
    """Two layers; token 0 costs 9 s a unit, token 1 costs 1 s; 9 B each. Unit (t, l) is 2 t + l."""
    compute_s = np.array([[[9.0], [9.0]], [[1.0], [1.0]]])
    return LoadProblem(compute_s=compute_s, stream_bytes=np.full((2, 2, 1), 9.0), coupling="per_head")


def test_later_tokens_are_computed_beside_the_streams_they_attend_to():
    problem = dear_then_cheap()
    plan = split_plan(problem, 9.0)
    plan.check(problem)
    # Streaming token 0 takes 2 s, computing token 1 takes 2 s.
    assert plan == Plan((Stage(compute=(2, 3), stream=(0, 1)),))
    assert plan.stage_makespan_s(problem, 9.0) == pytest.approx(2.0)
    # (1, 0) waits 1 s for the stream of (0, 0); the last layer attends to nothing: 1 + 1 + 1 s.
    assert plan.completion_s(problem, 9.0) == pytest.approx(3.0)


@pytest.mark.parametrize("share", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("coupling", "shape"), [("per_head", (20, 36, 8)), ("all_heads", (80, 36, 1))])
def test_it_comes_within_a_percent_of_the_bound_where_the_chain_does_not(coupling, shape, share):
    problem = uneven(1, shape, coupling)
    bytes_per_s = share * problem.stream_bytes.sum() / problem.compute_s.sum()
    plan = split_plan(problem, bytes_per_s)
    plan.check(problem)
    least_s = bound_s(frontier(problem), bytes_per_s)
    assert least_s <= plan.completion_s(problem, bytes_per_s) <= 1.01 * least_s
    assert chain_plan(problem, bytes_per_s).completion_s(problem, bytes_per_s) > 1.05 * least_s


def test_what_is_left_is_divided_anew():
    # (0, 0) has been streamed, which ends column 0; (1, 0) has been computed.
    # Left are (0, 1), to be streamed, and (1, 1), either way.
    problem = dear_then_cheap()
    absent = np.array([[[False], [True]], [[False], [True]]])
    depths = np.array([[0], [1]])
    labels = column_labels(problem)
    # 9 B/s: stream one (1 s) beside computing the other (1 s), rather than both streams (2 s)
    assert split_stage(problem, labels, 9.0, absent=absent, depths=depths) == Stage(compute=(3,), stream=(1,))
    # At a tenth of the speed computing would take 10 s.
    slow = split_stage(problem, labels, 9.0, absent=absent, depths=depths, compute_speed=0.1)
    assert slow == Stage(compute=(), stream=(1, 3))
    # 18 B are left: at 20 B/s they take 0.9 s, less than computing.
    assert split_stage(problem, labels, 20.0, absent=absent, depths=depths) == Stage(compute=(), stream=(1, 3))
    # Over a link 20 times slower it would still pay, but column 0 can no longer be computed.
    assert split_stage(problem, labels, 0.45, absent=absent, depths=depths) == Stage(compute=(3,), stream=(1,))


@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
@pytest.mark.parametrize("seed", range(5))
def test_doing_part_and_solving_again_loads_each_unit_once(coupling, seed):
    chance = np.random.default_rng(seed)
    problem = uneven(seed, (6, 5, 2 if coupling == "per_head" else 1), coupling)
    labels = column_labels(problem)
    absent = np.ones(problem.compute_s.shape, dtype=bool)
    depths = np.zeros((problem.token_chunks, problem.columns_per_chunk), dtype=np.int64)
    rate = problem.stream_bytes.sum() / problem.compute_s.sum()
    stages = []
    for _ in range(4):
        # Some of the stage gets done before the rates turn out to be others.
        stage = split_stage(problem, labels, rate * chance.uniform(0.2, 3.0), absent=absent, depths=depths)
        streamed = stage.stream[: len(stage.stream) // 2]
        absent.ravel()[list(streamed)] = False
        computed = _possible(problem, stage, absent)
        for unit in computed:
            t, l, c = problem.place(unit)
            absent[t, l, c] = False
            depths[t, c] += 1
        stages.append(Stage(tuple(computed), streamed))
    last = split_stage(problem, labels, rate, absent=absent, depths=depths)
    Plan((*stages, last)).check(problem)


def _possible(problem: LoadProblem, stage: Stage, absent: np.ndarray) -> list[int]:
    """The first half of what can be computed in the stage's order with the KV that is there."""
    there, done = ~absent, []
    for unit in stage.compute[: len(stage.compute) // 2]:
        t, l, c = problem.place(unit)
        attended = problem.attended_layer(l)
        if attended is not None and not there[:t, attended, c].all():
            break
        there[t, l, c] = True
        done.append(unit)
    return done
