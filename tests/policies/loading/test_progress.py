"""LoadProgress against a load followed by hand."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress


def problem(coupling: Coupling, t: int = 3, l: int = 3, c: int = 1) -> LoadProblem:
    return LoadProblem(compute_s=np.ones((t, l, c)), stream_bytes=np.full((t, l, c), 10.0), coupling=coupling)


def test_at_the_start_only_the_first_layer_can_be_computed() -> None:
    # all_heads: layer 0 is projected from the embeddings, so every token chunk may begin.
    load = LoadProgress(problem("all_heads"))
    assert [u for u in range(9) if load.computable(u)] == [0, 3, 6]
    # per_head (Eq. 4): layer 0 of chunk t waits for layer 0 of all earlier chunks.
    load = LoadProgress(problem("per_head"))
    assert [u for u in range(9) if load.computable(u)] == [0]


def test_per_head_the_last_layer_needs_only_its_own_column() -> None:
    load = LoadProgress(problem("per_head", t=2))
    for unit in (0, 3, 1, 4):  # layers 0 and 1 of both chunks
        load.hand_over_compute(unit)
        load.computed(unit)
    # chunk 1, layer 2 (unit 5): chunk 0 has not got layer 2, and need not.
    assert load.computable(5)
    assert load.missing_before(1, 2, 0) is None


def test_a_streamed_unit_unlocks_later_chunks_and_ends_its_column_per_head() -> None:
    load = LoadProgress(problem("per_head"))
    load.hand_over_stream(0, 10.0)
    assert not load.computable(3)
    load.streamed(0, 10.0)
    assert load.computable(3)  # chunk 1, layer 0: chunk 0 is there
    assert not load.computable(0)
    assert not load.computable(1)  # chunk 0, layer 1: nothing below it was computed
    assert load.streamed_bytes == 10.0
    assert load.streaming_bytes == 0.0


def test_all_heads_may_compute_past_a_streamed_unit() -> None:
    load = LoadProgress(problem("all_heads"))
    load.hand_over_stream(0, 10.0)
    load.streamed(0, 10.0)
    assert load.computable(0)


def test_what_was_handed_over_counts_as_done_for_what_follows_it() -> None:
    load = LoadProgress(problem("per_head"))
    load.hand_over_compute(0)
    assert load.computable(3)
    assert load.computable(1)
    assert not load.present[0]
    load.compute_cancelled(0)
    assert not load.computable(3)
    assert load.computable(0)
    assert load.computing_s == 0.0


def test_first_missing_skips_over_chunks_that_came_early() -> None:
    load = LoadProgress(problem("per_head"))
    for t in (1, 2, 0):  # streamed out of order
        unit = load.problem.unit(t, 1, 0)
        load.hand_over_stream(unit, 1.0)
        load.streamed(unit, 1.0)
    assert load.first_missing[1][0] == 3
    assert load.remaining == 6


def test_a_race_counts_the_unit_once() -> None:
    load = LoadProgress(problem("all_heads"))
    load.hand_over_compute(0)
    load.hand_over_stream(0, 10.0)
    load.computed(0)
    assert load.remaining == 8
    load.link_left(0, 10.0)
    assert load.remaining == 8
    assert load.streamed_bytes == 0.0
    assert list(load.absent_units()) == list(range(1, 9))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        LoadProblem(compute_s=np.ones((1, 2, 3)), stream_bytes=np.ones((1, 2, 4)), coupling="all_heads")


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_nothing_under_way_is_exactly_nothing(costs: list[float], order: Random) -> None:
    sizes = np.array(costs)[:, None, None]
    load = LoadProgress(LoadProblem(compute_s=sizes, stream_bytes=sizes, coupling="all_heads"))
    units = list(range(len(costs)))
    for unit in units:
        load.hand_over_compute(unit)
        load.hand_over_stream(unit, costs[unit])
        assert (load.units_computing, load.units_streaming) == (sum(load.computing), sum(load.streaming))
    order.shuffle(units)
    for unit in units:
        order.choice([load.computed, load.compute_cancelled])(unit)
        order.choice([load.streamed, load.link_left])(unit, costs[unit])
        assert (load.units_computing, load.units_streaming) == (sum(load.computing), sum(load.streaming))
    assert (load.computing_s, load.streaming_bytes) == (0.0, 0.0)
