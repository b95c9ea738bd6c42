"""Layers that attend to a window: how many tokens each takes in, counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.scenarios.loader import load_model
from kvferry.specs.base import BadKey
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.windows import LayersAlike, pairs, seen


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 60) | st.none())
def test_pairs_of_a_prompt_are_those_of_its_queries_counted_one_by_one(
    tokens: int, context: int, window: int | None
) -> None:
    counted = sum(seen(context + n, window) for n in range(1, tokens + 1))
    assert pairs(tokens, context, window) == counted
    assert pairs(np.array([tokens]), np.array([context]), window) == [counted]


def test_published_patterns_of_layers() -> None:
    patterns = {
        "gemma-2-9b": (21, 21, 4096),
        "gemma-3-1b": (4, 22, 512),
        "gemma-3-4b": (5, 29, 1024),
        "gemma-3-12b": (8, 40, 1024),
        "gpt-oss-20b": (12, 12, 128),
        "ministral-8b": (9, 27, 32768),
    }
    for name, (full, windowed, window) in patterns.items():
        assert load_model(name).spans == (LayersAlike(full), LayersAlike(windowed, window))
    assert load_model("mistral-7b-v0.1").spans == (LayersAlike(32, 4096),)
    assert load_model("llama-3.1-8b").spans == (LayersAlike(32),)
    gemma = load_model("gemma-3-1b")
    assert [layer for layer in range(26) if gemma.window_of(layer) is None] == [5, 11, 17, 23]


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"full_layers": (1,)}, "without a window"),
        ({"window": 8, "full_layers": (4,)}, "from 0 to 3"),
        ({"window": 8, "full_layers": (2, 1)}, "ascending"),
        ({"window": 8, "full_layers": (1, 1)}, "each once"),
    ],
)
def test_layers_that_are_none(keys: dict[str, object], what: str) -> None:
    with pytest.raises((BadKey, InputError, ValueError), match=what):
        ModelSpec.model_validate(load_model("tiny").model_dump() | keys)
