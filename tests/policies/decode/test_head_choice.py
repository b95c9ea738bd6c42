"""How heads choose together, by hand for every kind of attention."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from kvferry.policies.decode.head_choice import attention_kind, choosing_heads, group_weights
from kvferry.policies.decode.key_index import TokenKeys, selector_by
from kvferry.policies.decode.retrieval_head import RetrievalHead
from kvferry.policies.decode.room import Room
from kvferry.specs.model import ModelSpec

# Four query heads over five tokens.
WEIGHTS = np.array(
    [
        [0.1, 0.6, 0.1, 0.1, 0.1],
        [0.5, 0.1, 0.2, 0.1, 0.1],
        [0.1, 0.1, 0.1, 0.3, 0.4],
        [0.2, 0.1, 0.5, 0.1, 0.1],
    ]
)
MODELS = {
    "mha": tiny_model(query_heads=4, kv_heads=4),
    "gqa": tiny_model(query_heads=4, kv_heads=2),
    "mqa": tiny_model(query_heads=4, kv_heads=1),
    "mla": tiny_model(
        query_heads=4, kv_heads=1, head_dim=6, latent={"kv_lora_rank": 8, "qk_rope_head_dim": 2, "v_head_dim": 4}
    ),
}
ALL = [0.5, 0.6, 0.5, 0.3, 0.4]
EXPECTED = {"mha": WEIGHTS.tolist(), "gqa": [[0.5, 0.6, 0.2, 0.1, 0.1], [0.2, 0.1, 0.5, 0.3, 0.4]]}
EXPECTED |= {"mqa": [ALL], "mla": [ALL]}


@pytest.mark.parametrize("kind", MODELS)
def test_what_heads_weigh_together(kind: str) -> None:
    model = MODELS[kind]
    assert attention_kind(model) == kind
    assert group_weights(WEIGHTS, choosing_heads(model)).tolist() == EXPECTED[kind]


@pytest.mark.parametrize("kind", MODELS)
def test_a_retrieval_head_chooses_by_them(kind: str) -> None:
    model: ModelSpec = MODELS[kind]
    room = Room(model=model, block_tokens=1, context=64, output=8, budget_bytes=1e6, grows=True)
    found = RetrievalHead(selected_tokens=2).index(room, 0.0)
    assert found is not None
    assert found.spec.heads == len(EXPECTED[kind])
    assert RetrievalHead(selected_tokens=2, per_head=False).spec(room, 4).heads == 1


def test_an_index_of_keys_takes_each_key_once() -> None:
    """4 blocks of 16 tokens in each of 3 layers, keys of 2 heads by 8 values of 2 bytes: 4 * 16 * 3 * 16 * 2."""
    model = tiny_model(layers=3, kv_heads=2, head_dim=8, kv_value_bytes=2)
    room = Room(model=model, block_tokens=16, context=64, output=0, budget_bytes=1e6, grows=False)
    found = selector_by("keys", TokenKeys)(selected_tokens=2).index(room, 0.0)
    assert found is not None and found.n_bytes == room.blocks * 16 * 3 * 16 * 2


def test_head_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="4 query heads cannot choose as 3 groups; a divisor of 4 would do"):
        group_weights(WEIGHTS, 3)
    with pytest.raises(ValueError, match="4 query heads cannot choose as 0 groups"):
        group_weights(WEIGHTS, 0)


@given(groups=st.integers(1, 4), shared=st.integers(1, 4), tokens=st.integers(1, 12), rows=st.integers(1, 3))
def test_nobody_weighs_more_than_the_group(groups: int, shared: int, tokens: int, rows: int) -> None:
    weights = np.random.default_rng(tokens).random((rows, groups * shared, tokens))
    together = group_weights(weights, groups)
    assert together.shape == (rows, groups, tokens)
    of_each = np.repeat(together, shared, axis=1)
    assert (weights <= of_each).all()
    assert (weights == of_each).reshape(rows, groups, shared, tokens).any(axis=2).all()
