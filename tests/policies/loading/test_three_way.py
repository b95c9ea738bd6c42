"""Three paths: by hand, against the exact schedule, and never worse than two."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.ferry_three_way import ThreeWayFerry
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.milp import milp_plan
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.three_way import Divisions, clairvoyant_three_way_s, three_way_bound_s, three_way_stage

NOWHERE = np.inf


def problem_of(
    shape: tuple[int, int, int], work_s: object, stream: object, read: object, start_s: float = 0.0
) -> LoadProblem:
    parts = [np.broadcast_to(np.array(part, dtype=float), shape).copy() for part in (work_s, stream, read)]
    return LoadProblem(
        compute_s=parts[0], stream_bytes=parts[1], read_bytes=parts[2], coupling="all_heads", start_s=start_s
    )


def drawn(seed: int, shape: tuple[int, int, int], spread: float) -> LoadProblem:
    chance = np.random.default_rng(seed)
    work, stream, read = (chance.lognormal(0.0, spread, shape) for _ in range(3))
    return problem_of(shape, work, stream, read)


def three_way_plan(problem: LoadProblem, bytes_per_s: float, read_bytes_per_s: float) -> Plan:
    """The whole problem, divided among three paths that begin with nothing before them."""
    seconds = np.array([1.0, 1.0 / bytes_per_s, 1.0 / read_bytes_per_s])
    all_units, ahead_s = np.ones(problem.compute_s.shape, bool), np.array([problem.start_s, 0.0, 0.0])
    divisions = Divisions(problem)
    return Plan(
        (three_way_stage(problem, divisions, seconds, absent=all_units, computable=all_units, ahead_s=ahead_s),)
    )


def test_three_like_paths_take_a_third():
    # Six units of 1 s on every path: two each.
    problem = problem_of((3, 2, 1), 1.0, 1.0, 1.0)
    assert three_way_bound_s(problem, 1.0, 1.0) == pytest.approx(2.0)
    plan = three_way_plan(problem, 1.0, 1.0)
    plan.check(problem)
    assert [len(plan.compute), len(plan.stream), len(plan.read)] == [2, 2, 2]
    assert plan.stage_makespan_s(problem, 1.0, 1.0) == pytest.approx(2.0)


def test_storage_takes_what_the_link_finds_dear():
    # One layer, computing takes ages. Units of 1, 4 B on the link and 2, 2 B on storage: the second is read (2 s), the
    # first streamed (1 s). A sixth of the second over the link instead would even both: 2 - 2/6 = 1 + 4/6 = 5/3 s.
    problem = problem_of((2, 1, 1), 1e3, [[[1.0]], [[4.0]]], 2.0)
    assert three_way_bound_s(problem, 1.0, 1.0) == pytest.approx(5 / 3, rel=2e-3)
    plan = three_way_plan(problem, 1.0, 1.0)
    assert (plan.stream, plan.read, plan.compute) == ((0,), (1,), ())


def test_what_lies_nowhere_is_computed():
    problem = problem_of((2, 1, 1), 5.0, [[[NOWHERE]], [[1.0]]], [[[NOWHERE]], [[1.0]]])
    assert three_way_bound_s(problem, 1.0, 1.0) == pytest.approx(5.0)
    assert three_way_plan(problem, 1.0, 1.0).compute == (0,)


def test_a_load_that_computes_nothing_waits_for_no_start():
    # Two units: by link and storage 1 s; whoever computes waits for 10 s first.
    problem = problem_of((2, 1, 1), 0.1, 1.0, 1.0, start_s=10.0)
    assert three_way_bound_s(problem, 1.0, 1.0) == pytest.approx(1.0)


def test_a_unit_that_lies_nowhere_locally_cannot_be_planned_to_be_read():
    problem = problem_of((1, 1, 1), 1.0, 1.0, NOWHERE)
    with pytest.raises(ValueError, match="do not lie on local storage"):
        Plan((Stage(read=(0,)),)).check(problem)


def test_paths_that_vary_have_the_same_bound():
    # As the first, but storage works for the first second alone and the processor begins after one: 1 + 2 + 3 units.
    problem = problem_of((3, 2, 1), 1.0, 1.0, 1.0)
    found = clairvoyant_three_way_s(problem, lambda s: (max(0.0, s - 1.0), s, min(s, 1.0)))
    assert found == pytest.approx(3.0, rel=1e-4)
    assert clairvoyant_three_way_s(problem, lambda s: (0.0, 1.0, 1.0)) == np.inf


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0.3, 1.0, 3.0]))
@example(749840, 3.0, 3.0)  # HiGHS called 0.679 s optimal for 0.639
def test_the_exact_schedule_lies_between_the_bound_and_every_pair_of_paths(seed, link, storage):
    problem = drawn(seed, (3, 2, 1), 0.8)
    everywhere = np.full(problem.compute_s.shape, NOWHERE)
    best_s = milp_plan(problem, link, read_bytes_per_s=storage).makespan_s
    assert three_way_bound_s(problem, link, storage) <= best_s * (1 + 1e-9)
    pairs = (
        replace(problem, read_bytes=everywhere),
        replace(problem, stream_bytes=everywhere),
        replace(problem, compute_s=np.full(problem.compute_s.shape, 1e6)),
    )
    for pair in pairs:
        assert best_s <= milp_plan(pair, link, read_bytes_per_s=storage).makespan_s * (1 + 1e-3)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.2, 1.0, 5.0]), st.sampled_from([0.2, 1.0, 5.0]))
@example(54, 5.0, 1.0)  # 1.019 %: units are not divided, and one takes 1.2 %
def test_a_plan_is_within_one_percent_of_the_bound_and_a_unit(seed, link, storage):
    problem = drawn(seed, (16, 24, 2), 0.5)
    plan = three_way_plan(problem, link, storage)
    plan.check(problem)
    least_s = three_way_bound_s(problem, link, storage)
    a_unit_s = float(problem.compute_s.mean())
    assert least_s <= plan.stage_makespan_s(problem, link, storage) <= 1.01 * least_s + a_unit_s
    # Nor is any two paths' bound below the bound of three.
    everywhere = np.full(problem.compute_s.shape, NOWHERE)
    for fewer in ("stream_bytes", "read_bytes", "compute_s"):
        assert least_s <= three_way_bound_s(replace(problem, **{fewer: everywhere}), link, storage) * (1 + 1e-6)


def test_without_storage_it_is_the_bound_of_two_paths():
    problem = drawn(1, (8, 6, 2), 0.8)
    two = replace(problem, read_bytes=None)
    assert three_way_bound_s(two, 2.0, 1.0) == pytest.approx(bound_s(frontier(two), 2.0), rel=1e-5)


def test_many_units_are_read_several_at_a_time_and_few_one_by_one():
    # Everything lies on storage and nowhere else; computing takes ages. Two together for each sixteen that are left.
    problem = problem_of((10, 4, 1), 1e6, NOWHERE, 1.0)
    facts = LoadFacts(now_s=0.0, planned_bytes_per_s=1.0, rtt_s=0.0, planned_read_bytes_per_s=1.0)
    loader, progress = ThreeWayFerry(), LoadProgress(problem)
    loader.start(problem, facts)
    together: list[int] = []
    while (read := loader.next_read(progress, facts)) is not None:
        together.append(len(read.units))
    assert sum(together) == 40
    assert together == sorted(together, reverse=True) and together[0] == 3 and together[-1] == 1


def test_link_and_storage_begin_with_what_stays_theirs_when_rates_change():
    # One layer, computing takes ages. Storage takes 2 s each, the link 4, 8, 1 and 2 s: 0 and 1 are read, of which 1 is
    # the dearer one for the link; 2 and 3 are streamed, of which 2 is the cheaper one.
    problem = problem_of((4, 1, 1), 1e3, [[[4.0]], [[8.0]], [[1.0]], [[2.0]]], 2.0)
    plan = three_way_plan(replace(problem, coupling="per_head"), 1.0, 1.0)
    assert (plan.read, plan.stream) == ((1, 0), (2, 3))
    # 1.5 s each by storage. The processor takes the two cheapest; storage begins with what would cost it most.
    works = problem_of((5, 1, 1), [[[1.0]], [[2.0]], [[4.0]], [[3.0]], [[5.0]]], NOWHERE, 1.5)
    plan = three_way_plan(replace(works, coupling="per_head"), 1.0, 1.0)
    assert (plan.compute, plan.read) == ((0, 1), (4, 2, 3))
