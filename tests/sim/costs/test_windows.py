"""What layers that attend to a window cost, by hand on a model of one layer with a window and two without."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import by_hand_model

from kvferry.machine.ops import DecodeStep, Prefill, PrefillLayer
from kvferry.policies.decode.attention_kernel import PAGED
from kvferry.scenarios.loader import load_device
from kvferry.sim.costs.op_rules import Arithmetic
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.model import ModelSpec

MODEL = by_hand_model(window=6, full_layers=(0, 2))
GPU = load_device("tiny").processors["gpu"]


def windowed(tokens: int | None) -> ModelSpec:
    return MODEL.model_copy(update={"window": tokens, "full_layers": () if tokens is None else (0, 2)})


def test_a_decode_step_reads_the_window_by_hand() -> None:
    # A token's key and value in a layer: 2 heads x 2 x 5 numbers x 2 B = 40 B. Two layers read 10 tokens of each of 3
    # sequences, one reads 6. A pair: 4 query heads x 2 products x 2 x 5 flop.
    full, window, *dense = Arithmetic(MODEL)(DecodeStep(3, 10, kernel=PAGED))
    assert full == ("decode_attention", 2 * 3 * 10 * 80, 2 * 3 * 10 * 40)
    assert window == ("decode_attention", 1 * 3 * 6 * 80, 1 * 3 * 6 * 40)
    # Weights are read as ever: 3 layers of 1,200, and an output head of 100 x 10.
    assert [n_bytes for _, _, n_bytes in dense] == [3 * 1200, 2 * 1000]


def test_prefill_attends_within_the_window_by_hand() -> None:
    # Eight tokens behind four: 5 + 6 + 7 + ... + 12 = 68 pairs, within a window of six 5 + 7 x 6 = 47.
    full, window, *_ = Arithmetic(MODEL)(Prefill(8, 4))
    assert (full[1], window[1]) == (2 * 68 * 80, 1 * 47 * 80)
    (attended, _) = Arithmetic(MODEL)(PrefillLayer(1, 8, context_tokens=4, window_tokens=6))
    assert attended == window
    # A block of 128 queries reads the keys before it; of 1,000 no more than a window before each of them: 6 + 127.
    (attended, _) = Arithmetic(MODEL)(PrefillLayer(1, 128, context_tokens=1000, window_tokens=6))
    assert attended[1:] == (128 * 6 * 80, 133 * 40)


@given(st.integers(1, 4000), st.integers(0, 4000), st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_window_that_holds_all_changes_nothing_and_a_shorter_one_costs_no_more(
    tokens: int, context: int, one: int, other: int
) -> None:
    shorter, longer = sorted((one, other))
    for op in (Prefill(tokens, context), DecodeStep(2, tokens)):
        dense = Roofline(GPU, windowed(None)).cost(op)
        less, more = (Roofline(GPU, windowed(window)).cost(op) for window in (shorter, longer))
        assert less.duration_s <= more.duration_s * (1 + 1e-9) <= dense.duration_s * (1 + 2e-9)
        assert less.n_bytes <= more.n_bytes * (1 + 1e-9) <= dense.n_bytes * (1 + 2e-9)
        whole = Roofline(GPU, windowed(tokens + context)).cost(op)
        assert whole.duration_s == pytest.approx(dense.duration_s, rel=1e-12)
        assert whole.n_bytes == pytest.approx(dense.n_bytes, rel=1e-12)
    op = PrefillLayer(1, tokens, context_tokens=context)
    layer = Roofline(GPU, windowed(None))
    assert layer.cost(replace(op, window_tokens=tokens + context)) == layer.cost(op)
