"""Loaders asked step by step, on problems small enough to follow on paper."""

from dataclasses import replace

import numpy as np
import pytest

from kvferry.policies.loading.hybrid import Hybrid, Variant, true_split, uniform_split
from kvferry.policies.loading.loader import Loader, LoadFacts
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.single_path import CacheGen

FACTS = LoadFacts(now_s=0.0, planned_bytes_per_s=1.0, rtt_s=0.0)


def problem(compute_s: list[float], stream_bytes: list[float], coupling: Coupling = "all_heads") -> LoadProblem:
    """One layer, one column: a cost of either kind per token chunk."""
    return LoadProblem(
        compute_s=np.array(compute_s)[:, None, None],
        stream_bytes=np.array(stream_bytes)[:, None, None],
        coupling=coupling,
    )


def square(n: int, coupling: Coupling = "all_heads", columns: int = 1) -> LoadProblem:
    """n token chunks of n layers, every unit 1 s or 1 byte. With one column, unit (t, l) is t * n + l."""
    ones = np.ones((n, n, columns))
    return LoadProblem(compute_s=ones, stream_bytes=ones, coupling=coupling)


def computes(loader: Loader, load: LoadProblem, n: int, facts: LoadFacts = FACTS) -> list[tuple[int, ...] | None]:
    progress = LoadProgress(load)
    asked = [loader.next_compute(progress, facts) for _ in range(n)]
    return [None if wanted is None else wanted.units for wanted in asked]


def streams(loader: Loader, load: LoadProblem, n: int, facts: LoadFacts = FACTS) -> list[tuple[int, ...] | None]:
    progress = LoadProgress(load)
    asked = [loader.next_stream(progress, facts) for _ in range(n)]
    return [None if wanted is None else wanted.units for wanted in asked]


# --- Strong Hybrid ----------------------------------------------------------------------------------------------


def test_splits_by_hand() -> None:
    # Uniform: 4 chunks of 4 s compute, 1 s stream on average: n * 4 = (4 - n) * 1, n = 0.8, rounded 1.
    # True costs: computing n chunks ends at n=1 max(1, 3), n=2 max(2, 2), n=3 max(7, 1).
    load = problem([1, 1, 5, 9], [1, 1, 1, 1])
    assert uniform_split(load, 1.0) == 1
    assert true_split(load, 1.0) == 2
    # A link ten times slower, 10 s a chunk: uniform 4 n = (4 - n) 10, n = 2.86; true: n=3 max(7, 10), n=4 max(16, 0).
    assert uniform_split(load, 0.1) == 3
    assert true_split(load, 0.1) == 3
    # The processor starts for 10 s, uniform 10 + 4 n = (4 - n) 10, n = 2.14; true: n=2 max(12, 20), n=3 max(17, 10).
    late = replace(load, start_s=10.0)
    assert uniform_split(late, 0.1) == 2
    assert true_split(late, 0.1) == 3
    assert uniform_split(late, 1.0) == true_split(late, 1.0) == 0


def test_a_static_split_is_never_crossed() -> None:
    load = square(2)
    hybrid = Hybrid("uniform")
    hybrid.start(load, FACTS)
    assert hybrid.split == 1
    assert computes(hybrid, load, 3) == [(0,), (1,), None]
    assert streams(hybrid, load, 3) == [(3,), (2,), None]


def test_two_pointers_meet_within_a_chunk() -> None:
    load = square(2)
    hybrid = Hybrid("two-pointer")
    hybrid.start(load, FACTS)
    assert computes(hybrid, load, 3) == [(0,), (1,), (2,)]
    assert streams(hybrid, load, 2) == [(3,), None]
    assert computes(hybrid, load, 1) == [None]


@pytest.mark.parametrize("variant", ["two-pointer", "whole-chunk"])
def test_a_link_without_a_processor_streams_everything_and_stops(variant: Variant) -> None:
    load = square(2)
    hybrid = Hybrid(variant)
    hybrid.start(load, FACTS)
    assert streams(hybrid, load, 6) == [(3,), (2,), (1,), (0,), None, None]


def test_whole_chunks_belong_to_the_path_that_took_them_first() -> None:
    load = square(2)
    hybrid = Hybrid("whole-chunk")
    hybrid.start(load, FACTS)
    assert streams(hybrid, load, 1) == [(3,)]
    assert computes(hybrid, load, 2) == [(0, 1), None]  # chunk 1 is the link's, though only half of it has left
    assert streams(hybrid, load, 2) == [(2,), None]


def test_all_heads_of_a_layer_go_together() -> None:
    load = square(2, "per_head", columns=2)
    hybrid = Hybrid("two-pointer")
    hybrid.start(load, FACTS)
    assert computes(hybrid, load, 1) == [(0, 1)]
    assert streams(hybrid, load, 1) == [(6, 7)]


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError, match="'static'"):
        Hybrid("static")  # type: ignore[arg-type]


# --- CacheGen ---------------------------------------------------------------------------------------------------


def test_cachegen_takes_the_best_level_that_meets_the_objective() -> None:
    load = LoadProblem(
        compute_s=np.ones((2, 1, 1)),
        stream_bytes=np.full((2, 1, 1), 10.0),
        coupling="all_heads",
        level_scale=(1.0, 0.5, 0.25),
    )
    loader = CacheGen(objective_s=2.0)
    progress = LoadProgress(load)
    loader.start(load, LoadFacts(now_s=5.0, planned_bytes_per_s=5.0, rtt_s=0.0))
    # 20 bytes left, 2 s at the planned 5 bytes/s carry 10: level 1.
    first = loader.next_stream(progress, LoadFacts(now_s=5.0, planned_bytes_per_s=5.0, rtt_s=0.0))
    assert first is not None and (first.units, first.level) == ((0,), 1)
    # 10 bytes left and 0.5 s: nothing fits, though 4 bytes/s were seen: the lowest.
    second = loader.next_stream(progress, LoadFacts(6.5, 5.0, 0.0, goodput_bytes_per_s=4.0))
    assert second is not None and (second.units, second.level) == ((1,), 2)
    assert loader.next_stream(progress, LoadFacts(7.0, 5.0, 0.0)) is None
    assert loader.next_compute(progress, FACTS) is None


def test_cachegen_keeps_its_best_level_where_quality_is_the_objective() -> None:
    ones = np.ones((2, 1, 1))
    load = LoadProblem(compute_s=ones, stream_bytes=ones, coupling="all_heads", level_scale=(1.0, 0.5))
    loader = CacheGen(objective_s="quality")
    loader.start(load, FACTS)
    # However slow the link is, even where it carries nothing.
    still = LoadFacts(1e6, 1.0, 0.0, goodput_bytes_per_s=0.0)
    asked = [loader.next_stream(LoadProgress(load), facts) for facts in (FACTS, still)]
    assert [s.level for s in asked if s] == [0, 0]


def test_cachegen_keeps_a_chunk_at_one_level_and_sees_a_faster_link() -> None:
    ones = np.ones((2, 2, 1))
    load = LoadProblem(compute_s=ones, stream_bytes=ones, coupling="all_heads", level_scale=(1.0, 0.5))
    loader = CacheGen(objective_s=2.0)
    progress = LoadProgress(load)
    loader.start(load, FACTS)
    # 4 bytes left, 2 fit: level 1 for both layers of chunk 0, whatever is seen meanwhile; then 2 bytes fit 1.9 s at 9.
    fast = LoadFacts(0.1, 1.0, 0.0, goodput_bytes_per_s=9.0)
    asked = [loader.next_stream(progress, facts) for facts in (FACTS, fast, fast, fast)]
    assert [(s.units, s.level) for s in asked if s] == [((0,), 1), ((1,), 1), ((2,), 0), ((3,), 0)]
