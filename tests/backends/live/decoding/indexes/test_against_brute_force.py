"""Each index beside the true products of queries and keys, on keys of a real (random) model."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from small_decoding import small_model

from kvferry.policies.decode.index import IndexSpec

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
KINDS = ("low-rank-keys", "partial-keys", "principal-keys", "landmarks", "page-bounds")
TOKENS, BLOCK, K = 192, 4, 12
# Query heads, KV heads and their width, of the small model.
HEADS, KV_HEADS, WIDTH = 4, 2, 16


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


@pytest.fixture(scope="module")
def left(model: Any) -> list[Any]:
    """What two prompts leave in each layer."""
    from kvferry.backends.live.decoding.indexes.index import sampled
    from kvferry.model.decoder import Decoder

    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, TOKENS)))
    return list(sampled(Decoder(model), ids))


def made(model: Any, kind: str, *, rank: int, block_tokens: int = BLOCK, **more: Any) -> Any:
    from kvferry.backends.live.decoding.indexes.table import INDEXES
    from kvferry.model.decoder import Decoder

    sample = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (1, 400)))
    spec = IndexSpec(kind=kind, heads=KV_HEADS, rank=rank, block_tokens=block_tokens, **more)
    return INDEXES[kind](Decoder(model), sample, spec, sequences=2, room_tokens=TOKENS)


def true_scores(prefilled: Any, heads: int) -> Any:
    """[sequences, heads, tokens]: products of the last query with all keys, summed over the query heads of a choice."""
    by_kv_head = prefilled.queries[:, :, -1].unflatten(1, (KV_HEADS, -1))
    products = torch.einsum("skqd,sktd->skqt", by_kv_head, prefilled.keys).flatten(1, 2)
    return products.unflatten(1, (heads, -1)).sum(2)


@pytest.mark.parametrize("heads", [1, KV_HEADS])
@pytest.mark.parametrize("kind", ["low-rank-keys", "partial-keys", "principal-keys"])
def test_with_all_of_the_rank_scores_are_true(model: Any, left: list[Any], kind: str, heads: int) -> None:
    index = made(model, kind, rank=KV_HEADS * WIDTH)
    for layer, prefilled in enumerate(left):
        # In two parts, as decoding adds to what prefill left.
        index.prefill(layer, prefilled.queries, prefilled.keys[:, :, :160])
        index.append(layer, prefilled.keys[:, :, 160:])
        assert index.blocks(layer) == TOKENS // BLOCK
        wanted = true_scores(prefilled, heads).unflatten(-1, (-1, BLOCK)).amax(-1)
        scores = index.scores(layer, prefilled.queries[:, :, -1:], heads)
        assert torch.allclose(scores, wanted, atol=1e-4 * float(wanted.std()))


@pytest.mark.parametrize("heads", [1, KV_HEADS])
def test_a_bound_is_never_below_a_true_score(model: Any, left: list[Any], heads: int) -> None:
    index = made(model, "page-bounds", rank=2 * KV_HEADS * WIDTH)
    for layer, prefilled in enumerate(left):
        index.prefill(layer, prefilled.queries, prefilled.keys)
        best = true_scores(prefilled, heads).unflatten(-1, (-1, BLOCK)).amax(-1)
        bounds = index.scores(layer, prefilled.queries[:, :, -1:], heads)
        assert (bounds >= best - 1e-4).all()
        # A page of one token is bounded by its key itself.
        exact = made(model, "page-bounds", rank=2 * KV_HEADS * WIDTH, block_tokens=1)
        exact.prefill(layer, prefilled.queries, prefilled.keys)
        scores = exact.scores(layer, prefilled.queries[:, :, -1:], heads)
        assert torch.allclose(scores, true_scores(prefilled, heads), atol=1e-4)


def test_a_landmark_has_the_mean_of_the_true_scores(model: Any, left: list[Any]) -> None:
    index = made(model, "landmarks", rank=KV_HEADS * WIDTH)
    index.prefill(1, left[1].queries, left[1].keys)
    mean = true_scores(left[1], KV_HEADS).unflatten(-1, (-1, BLOCK)).mean(-1)
    assert torch.allclose(index.scores(1, left[1].queries[:, :, -1:], KV_HEADS), mean, atol=1e-4)


def hit_rate(model: Any, left: list[Any], kind: str, rank: int, block_tokens: int = BLOCK) -> float:
    """Of the KV blocks with the best true scores, the share that an index chooses, over layers, sequences and heads."""
    hits = []
    for layer, prefilled in enumerate(left):
        index = made(model, kind, rank=rank, block_tokens=block_tokens)
        index.prefill(layer, prefilled.queries, prefilled.keys)
        best = true_scores(prefilled, KV_HEADS).unflatten(-1, (-1, block_tokens)).amax(-1).topk(K).indices
        chosen = index.scores(layer, prefilled.queries[:, :, -1:], KV_HEADS).topk(K).indices
        hits += [
            np.isin(one, other).mean()
            for one, other in zip(best.flatten(0, 1).numpy(), chosen.flatten(0, 1).numpy(), strict=True)
        ]
    return float(np.mean(hits))


@pytest.mark.parametrize("kind", KINDS)
def test_true_blocks_are_found_far_more_often_than_by_chance(model: Any, left: list[Any], kind: str) -> None:
    # 12 of 48 blocks: a quarter by chance.
    assert hit_rate(model, left, kind, rank=KV_HEADS * WIDTH // 2) > 0.4


@pytest.mark.parametrize("kind", ["low-rank-keys", "partial-keys", "principal-keys"])
def test_more_numbers_find_more(model: Any, left: list[Any], kind: str) -> None:
    rates = [hit_rate(model, left, kind, rank) for rank in (2, 8, 16, 32)]
    assert all(more >= fewer for fewer, more in pairwise(rates))
    assert rates[-1] == 1


def test_adapters_are_the_right_singular_vectors(model: Any) -> None:
    from kvferry.backends.live.decoding.indexes.low_rank_keys import low_rank_adapters
    from kvferry.model.decoder import Decoder
    from kvferry.model.recording import record_keys

    ids = np.random.default_rng(5).integers(0, 256, 90).tolist()
    adapters = low_rank_adapters(Decoder(model), torch.tensor([ids]), rank=6)
    assert adapters.shape == (3, 2, 16, 6)
    keys = record_keys(model, ids).vectors
    for layer in range(3):
        flat = torch.from_numpy(keys[layer].transpose(1, 0, 2).reshape(90, 32))
        wanted = torch.linalg.svd(flat, full_matrices=False).Vh[:6]
        cosines = (adapters[layer].reshape(32, 6).T * wanted).sum(1).abs()
        assert cosines.tolist() == pytest.approx([1.0] * 6, abs=1e-3)


def test_principal_components_are_those_of_the_covariance(model: Any) -> None:
    from kvferry.backends.live.decoding.indexes.index import sampled
    from kvferry.backends.live.decoding.indexes.projected_keys import principal_components
    from kvferry.model.decoder import Decoder

    ids = torch.from_numpy(np.random.default_rng(6).integers(0, 256, (1, 120)))
    components = principal_components(Decoder(model), ids, 4)
    for layer, prefilled in enumerate(sampled(Decoder(model), ids)):
        for head in range(KV_HEADS):
            covariance = np.cov(prefilled.keys[0, head].numpy(), rowvar=False)
            variances = (
                components[layer, head].T.double().numpy() @ covariance @ components[layer, head].double().numpy()
            )
            assert np.diag(variances) == pytest.approx(np.linalg.eigvalsh(covariance)[::-1][:4], rel=1e-3)


def test_skewing_leaves_products_as_they_are_and_gathers_queries(model: Any, left: list[Any]) -> None:
    from kvferry.backends.live.decoding.indexes.projected_keys import skewing_matrices
    from kvferry.model.decoder import Decoder

    # Made from the very prompts that `left` is of, where no other columns can hold more.
    skewing = skewing_matrices(Decoder(model), torch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, TOKENS))))
    assert torch.allclose(skewing @ skewing.mT, torch.eye(WIDTH).expand(3, KV_HEADS, -1, -1), atol=1e-5)
    for layer, prefilled in enumerate(left):
        plain = prefilled.queries.unflatten(1, (KV_HEADS, -1)).flatten(2, 3)
        skewed = plain @ skewing[layer]
        # The strongest quarter of the columns holds more of the queries' energy than before.
        shares = [each.square().sum((0, 2)).sort(-1, descending=True).values for each in (plain, skewed)]
        before, after = (float((share[:, :4].sum(-1) / share.sum(-1)).mean()) for share in shares)
        assert after > before
