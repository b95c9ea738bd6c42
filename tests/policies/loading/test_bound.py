"""The frontier and the bound, by hand and against every choice of depths."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from kvferry.policies.loading.bound import Frontier, bound_s, clairvoyant_bound_s, column_labels, frontier
from kvferry.policies.loading.problem import LoadProblem


def one_column(compute_s: list[float], stream_bytes: list[float]) -> LoadProblem:
    return LoadProblem(
        compute_s=np.array(compute_s).reshape(1, -1, 1),
        stream_bytes=np.array(stream_bytes).reshape(1, -1, 1),
        coupling="per_head",
    )


def random_problem(seed: int, shape: tuple[int, int, int] = (2, 3, 2)) -> LoadProblem:
    chance = np.random.default_rng(seed)
    return LoadProblem(
        compute_s=chance.lognormal(0.0, 1.0, shape),
        stream_bytes=chance.lognormal(5.0, 1.0, shape),
        coupling="per_head",
    )


def all_splits(problem: LoadProblem) -> list[tuple[float, float]]:
    """(work, bytes left) of every choice of depths."""
    tokens, layers, columns = problem.compute_s.shape
    splits = []
    for depths in product(range(layers + 1), repeat=tokens * columns):
        computed = np.arange(layers)[None, :, None] < np.array(depths).reshape(tokens, 1, columns)
        splits.append((problem.compute_s[computed].sum(), problem.stream_bytes[~computed].sum()))
    return splits


def test_a_layer_that_saves_little_waits_for_the_one_above():
    # Depths 0, 1, 2 leave 40, 30, 0 B after 0, 1, 2 s. The middle point lies above the line from (0, 40) to (2, 0),
    # so both layers form one piece: work share 1, bytes share 1, label 1 / (1 + 1).
    problem = one_column([1.0, 1.0], [10.0, 30.0])
    assert column_labels(problem).ravel() == pytest.approx([0.5, 0.5])
    line = frontier(problem)
    assert line.work_s == pytest.approx([0.0, 2.0])
    assert line.n_bytes == pytest.approx([40.0, 0.0])
    # 20 B/s: 20 M = 40 - 20 M at M = 1 s
    assert bound_s(line, 20.0) == pytest.approx(1.0)


def test_a_layer_that_saves_much_stands_alone():
    # (0, 40), (1, 10), (2, 0) is convex. 20 B/s: 20 M = 40 - 30 M at M = 0.8 s; 5 B/s: 5 M = 10 - 10 (M - 1) at 4/3 s.
    # Labels: work 1/2 of all, bytes 3/4: 0.5 / 1.25; work 1/2, bytes 1/4: 0.5 / 0.75.
    problem = one_column([1.0, 1.0], [30.0, 10.0])
    assert column_labels(problem).ravel() == pytest.approx([0.4, 2 / 3])
    line = frontier(problem)
    assert line.n_bytes == pytest.approx([40.0, 10.0, 0.0])
    assert bound_s(line, 20.0) == pytest.approx(0.8)
    assert bound_s(line, 5.0) == pytest.approx(4 / 3)


def test_columns_merge_by_slope():
    # Token 0 saves 5 B/s, token 1 saves 30 then 10 B/s: the frontier takes 30, 10, 5.
    problem = LoadProblem(
        compute_s=np.ones((2, 2, 1)),
        stream_bytes=np.array([[[5.0], [5.0]], [[30.0], [10.0]]]),
        coupling="all_heads",
    )
    line = frontier(problem)
    assert line.work_s == pytest.approx([0.0, 1.0, 2.0, 4.0])
    assert line.n_bytes == pytest.approx([50.0, 20.0, 10.0, 0.0])


@pytest.mark.parametrize("seed", range(5))
def test_the_frontier_is_the_envelope_of_all_splits(seed):
    problem = random_problem(seed)
    line, splits = frontier(problem), np.array(all_splits(problem))
    for slope in np.geomspace(1.0, 1e5, 60):
        # A convex line and a set of points have the same envelope if every slope touches both at one height.
        assert (line.n_bytes + slope * line.work_s).min() == pytest.approx((splits @ [slope, 1.0]).min())
    assert (np.diff(line.work_s) > 0).all()
    assert (np.diff(np.diff(line.n_bytes) / np.diff(line.work_s)) >= -1e-6).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bytes_per_s", [10.0, 300.0, 1e4])
def test_no_split_ends_before_the_bound_and_one_comes_near(seed, bytes_per_s):
    problem = random_problem(seed)
    best_s = min(max(work_s, n_bytes / bytes_per_s) for work_s, n_bytes in all_splits(problem))
    least_s = bound_s(frontier(problem), bytes_per_s)
    assert least_s <= best_s
    # Rounding a fraction of one unit's hull segment either way costs at most that segment.
    assert best_s <= least_s + problem.compute_s.sum(axis=1).max()


def test_streaming_only_and_computing_only():
    problem = one_column([1.0, 1.0], [10.0, 30.0])
    assert bound_s(frontier(problem), 0.0) == pytest.approx(2.0)
    # Computing at a snail's pace: 40 B at 20 B/s
    slow = one_column([1e9, 1e9], [10.0, 30.0])
    assert bound_s(frontier(slow), 20.0) == pytest.approx(2.0, rel=1e-6)


def test_free_units_are_neither_computed_nor_streamed_at_a_cost():
    # Layer 0 costs no work and saves 10 B; what remains is 30 B against 1 s: 20 M = 30 - 30 M at 0.6 s.
    line = frontier(one_column([0.0, 1.0], [10.0, 30.0]))
    assert line.least_bytes(0.0) == pytest.approx(30.0)
    assert line.work_s.tolist() == [0.0, 1.0]
    assert bound_s(line, 20.0) == pytest.approx(0.6)
    assert bound_s(frontier(one_column([1.0, 1.0], [0.0, 0.0])), 20.0) == 0.0
    assert bound_s(frontier(one_column([0.0, 0.0], [10.0, 30.0])), 20.0) == 0.0


def test_a_smaller_encoding_lowers_the_bound():
    # Half the bytes: 20 M = 20 - 10 M at 2/3 s
    assert bound_s(frontier(one_column([1.0, 1.0], [10.0, 30.0]), smallest_scale=0.5), 20.0) == pytest.approx(2 / 3)


def test_a_clairvoyant_waits_for_a_late_link_and_a_slow_processor():
    line = Frontier(work_s=np.array([0.0, 2.0]), n_bytes=np.array([40.0, 0.0]))

    def delivered_bytes(elapsed_s: float) -> float:
        return 40.0 * max(0.0, elapsed_s - 0.5)

    # 40 (M - 0.5) = 40 - 20 M at M = 1; at half speed 40 (M - 0.5) = 40 - 10 M at M = 1.2
    assert clairvoyant_bound_s(line, delivered_bytes, lambda elapsed_s: elapsed_s) == pytest.approx(1.0, rel=1e-8)
    assert clairvoyant_bound_s(line, delivered_bytes, lambda elapsed_s: elapsed_s / 2) == pytest.approx(1.2, rel=1e-8)


def test_a_dead_link_leaves_computing_and_two_dead_paths_never_end():
    line = Frontier(work_s=np.array([0.0, 2.0]), n_bytes=np.array([40.0, 0.0]))
    assert clairvoyant_bound_s(line, lambda _: 0.0, lambda elapsed_s: elapsed_s) == pytest.approx(2.0, rel=1e-8)
    assert clairvoyant_bound_s(line, lambda _: 0.0, lambda elapsed_s: elapsed_s / 1e4) == pytest.approx(2e4, rel=1e-8)
    assert clairvoyant_bound_s(line, lambda _: 0.0, lambda _: 0.0) == float("inf")
    assert clairvoyant_bound_s(line, lambda _: 40.0, lambda _: 0.0) == 0.0


@pytest.mark.parametrize("bytes_per_s", [10.0, 300.0, 1e4])
def test_a_clairvoyant_without_surprises_has_the_plain_bound(bytes_per_s):
    line = frontier(random_problem(1, (4, 6, 2)))
    constant_s = bound_s(line, bytes_per_s)
    varying_s = clairvoyant_bound_s(line, lambda elapsed_s: bytes_per_s * elapsed_s, lambda elapsed_s: elapsed_s)
    assert varying_s == pytest.approx(constant_s, rel=1e-8)
    assert varying_s <= constant_s * (1 + 1e-12)


def test_nothing_is_computed_before_the_processor_has_started():
    # Two layers of 1 s or 10 B each at 10 B/s: 2 s of streams, 2 s of work. Started at once, they meet after 1 s;
    # behind a start of 0.5 s, M - 0.5 = (20 - 10 M) / 10, so M = 1.25; behind one of 2 s all has come.
    problem = one_column([1.0, 1.0], [10.0, 10.0])
    for start_s, least_s in ((0.0, 1.0), (0.5, 1.25), (2.0, 2.0), (50.0, 2.0)):
        found = bound_s(frontier(replace(problem, start_s=start_s)), 10.0)
        assert found == pytest.approx(least_s)
