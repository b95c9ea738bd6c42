"""The retrieval head's K cache and what is chosen by it, beside the head's own attention over all tokens at once."""

from typing import Any

import numpy as np
import pytest
from small_decoding import small_model

from kvferry.policies.decode.index import IndexSpec

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
TOKENS, KV_HEADS, WIDTH = 40, 2, 16


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


def made(model: Any, block_tokens: int = 1, room_tokens: int = TOKENS) -> Any:
    from kvferry.backends.live.decoding.indexes.table import INDEXES
    from kvferry.model.decoder import Decoder

    kind = "retrieval-head"
    spec = IndexSpec(kind=kind, heads=KV_HEADS, rank=KV_HEADS * WIDTH, block_tokens=block_tokens, scores="best_head")
    return INDEXES[kind](Decoder(model), torch.zeros(1, 8), spec, sequences=2, room_tokens=room_tokens)


def keys(tokens: int) -> Any:
    """What the model's layers cache, of which the head needs nothing but how much it is."""
    return torch.zeros(2, KV_HEADS, tokens, WIDTH)


@torch.no_grad()
def attention_of_last(model: Any, ids: Any) -> Any:
    """float[sequences, KV heads, tokens before the last]: of the query heads of each, the largest share."""
    from kvferry.model.decoder import Decoder
    from kvferry.model.retrieval_head import random_head

    head, n = random_head(model, seed=0), ids.shape[1]
    queries, cache = head.projected(head.inputs(ids, n), Decoder(model).rotary(n))
    by_kv_head = queries[:, :, -1].unflatten(1, (KV_HEADS, -1))
    scores = torch.einsum("skqd,sktd->skqt", by_kv_head, cache[:, :, :-1]) * WIDTH**-0.5
    return scores.softmax(-1).amax(2)


@torch.no_grad()
def test_scores_are_the_heads_attention_token_by_token(model: Any) -> None:
    """The prompts at once, then one token after the other, as they are said."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, TOKENS)))
    index, context = made(model), 30
    index.read(ids[:, :context])
    for layer in range(3):
        index.prefill(layer, None, keys(context))
    for n in range(context, TOKENS):
        assert index.blocks(0) == index.blocks(2) == n
        index.read(ids[:, n : n + 1])
        scores = index.scores(0, None, KV_HEADS)
        torch.testing.assert_close(scores, attention_of_last(model, ids[:, : n + 1]), atol=1e-5, rtol=1e-4)
        # Asked twice, it answers the same.
        torch.testing.assert_close(index.scores(0, None, KV_HEADS), scores)
        for layer in range(3):
            index.append(layer, keys(1))


@torch.no_grad()
def test_a_block_has_the_score_of_its_best_token(model: Any) -> None:
    ids = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (2, TOKENS)))
    index = made(model, block_tokens=4)
    index.read(ids[:, :36])
    index.prefill(0, None, keys(36))
    index.read(ids[:, 36:37])
    expected = attention_of_last(model, ids[:, :37]).unflatten(-1, (9, 4)).amax(-1)
    torch.testing.assert_close(index.scores(0, None, KV_HEADS), expected, atol=1e-5, rtol=1e-4)


def test_its_memory_is_one_cache_for_all_layers_and_its_weights(model: Any) -> None:
    index = made(model)
    # 2 sequences, 2 heads of 16 numbers, a token more than there is room for; a head that reads 4 tokens of 8 numbers.
    weights = 64 * 8 + 32 + 32 * 64 + 32 * 32 + 2 * 16
    assert index.n_bytes == 4 * (2 * 2 * 16 * (TOKENS + 1) + weights)
