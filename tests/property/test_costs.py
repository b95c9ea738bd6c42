"""Costs behave as work does: never negative, more for more, and the same however they are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.ops import Advance, DecodeStep, Prefill, PrefillHead, Project
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.sim.costs.grid import Grid
from kvferry.sim.costs.roofline import Roofline, round_up
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks, generate_chunks

MODEL = load_model("tiny")
GPU = load_device("tiny").processors["gpu"]
NPU = GPU.model_copy(update={"kind": "npu", "compiled_tokens": (64, 256)})
COSTS = [Roofline(GPU, MODEL), Roofline(NPU, MODEL), COST_MODELS["block-sparse"](GPU, MODEL)]
tokens = st.integers(1, CHUNK_TOKENS)
blocks = st.integers(0, 5000)


@given(tokens, blocks, blocks, st.booleans())
def test_more_blocks_never_cost_less(count: int, few: int, more: int, final: bool) -> None:
    few, more = sorted((few, more))
    for costs in COSTS:
        for op in (PrefillHead, Advance):
            cheap, dear = costs.cost(op(count, few)), costs.cost(op(count, more))
            assert 0 < cheap.duration_s <= dear.duration_s * (1 + 1e-12)
            assert 0 < cheap.n_bytes <= dear.n_bytes
        assert costs.cost(PrefillHead(count, more, final)).duration_s <= costs.cost(PrefillHead(count, more)).duration_s


@given(tokens, tokens, st.integers(0, 10**6))
def test_longer_prompts_and_contexts_never_cost_less(one: int, other: int, context: int) -> None:
    one, other = sorted((one, other))
    for costs in COSTS:
        assert costs.cost(Project(one)).duration_s <= costs.cost(Project(other)).duration_s
        assert costs.cost(Prefill(one, context)).duration_s <= costs.cost(Prefill(other, context)).duration_s
        assert costs.cost(Prefill(one, 0)).duration_s <= costs.cost(Prefill(one, context)).duration_s
        assert costs.cost(DecodeStep(one, 0)).duration_s <= costs.cost(DecodeStep(one, context)).duration_s


@given(st.lists(st.tuples(tokens, blocks, st.booleans()), min_size=1, max_size=20))
def test_arrays_are_priced_as_their_elements(heads: list[tuple[int, int, bool]]) -> None:
    count, active, final = (np.array(column) for column in zip(*heads, strict=True))
    for costs in COSTS:
        together = costs.durations_s(PrefillHead(count, active, final))
        assert together == pytest.approx([costs.cost(PrefillHead(*head)).duration_s for head in heads], rel=1e-12)


@given(st.integers(0, 10**6), st.sets(st.integers(1, 4096), min_size=1, max_size=6))
def test_rounding_up_wastes_less_than_the_largest_shape(count: int, shapes: set[int]) -> None:
    rounded = round_up(count, np.array(sorted(shapes)))
    assert count <= rounded < count + max(shapes)
    assert round_up(rounded, np.array(sorted(shapes))) == rounded


@given(
    st.floats(-100, 200),
    st.floats(-100, 200),
    st.tuples(*[st.floats(0.01, 1)] * 3),
)
def test_a_grid_brings_back_any_plane(x: float, y: float, slopes: tuple[float, float, float]) -> None:
    xs, ys = np.array([0.0, 7, 90]), np.array([1.0, 2, 50, 60])
    a, b, c = slopes
    grid = Grid("g", ("x", "y"), (xs, ys), a * xs[:, None] + b * ys + 300 * c)
    assert grid({"x": x, "y": y}) == pytest.approx(max(0.0, a * x + b * y + 300 * c), abs=1e-9)


@given(
    st.sampled_from(["text", "vlm"]),
    st.integers(1, 12_000),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_generated_chunks_are_possible(content: str, total: int, layers: int, heads: int, seed: int) -> None:
    trace = generate_chunks(content, total, layers, heads, seed)  # checks itself
    assert trace.tokens.sum() == total
    assert trace.shape == (-(-total // CHUNK_TOKENS), layers, heads)
    assert trace.causal_blocks.tolist() == [
        causal_blocks(int(n), int(before)) for n, before in zip(trace.tokens, trace.context_tokens, strict=True)
    ]
    assert (trace.active_blocks > 0).all()
    assert (trace.stream_bytes(256) > 0).all()
