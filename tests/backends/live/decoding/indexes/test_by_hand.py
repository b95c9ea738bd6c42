"""Each index on keys and queries small enough to be scored with a pencil."""

from typing import Any

import pytest

from kvferry.policies.decode.index import IndexSpec, Scores

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def spec(kind: str, *, heads: int = 1, rank: int = 1, block_tokens: int = 1, scores: Scores = "summed") -> IndexSpec:
    return IndexSpec(kind=kind, heads=heads, rank=rank, block_tokens=block_tokens, scores=scores)


def one_head(*vectors: list[float]) -> Any:
    """[1 sequence, 1 head, tokens, head_dim]"""
    return torch.tensor(vectors)[None, None]


# --- low-rank-keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["summed", "by_head", "best_head"])
def test_low_rank_scores_of_groups(how: Scores) -> None:
    """Two query heads share one key head of width 2, which an adapter of rank 1 sees the first number of."""
    from kvferry.backends.live.decoding.indexes.low_rank_keys import LowRankKeys

    adapters = torch.tensor([[[[1.0], [0.0]]]])
    index = LowRankKeys(adapters, spec("low-rank-keys", block_tokens=2, scores=how), sequences=1, room_tokens=6)
    index.append(0, one_head([1.0, 9.0], [-2.0, 0.0], [3.0, 5.0], [-1.0, 0.0]))
    scores = index.scores(0, torch.tensor([[[[2.0, 4.0]], [[1.0, 7.0]]]]), heads=1)
    assert index.blocks(0) == 2
    assert index.n_bytes == 6 * 4
    assert scores.shape == (1, 1, 2)
    by_token = [(torch.tensor([1.0, -2.0, 3.0, -1.0]) * query * 2**-0.5).softmax(0) for query in (2.0, 1.0)]
    wanted = {
        # Summed over heads: 3 x (1, -2, 3, -1); the largest of each group.
        "summed": [3.0, 9.0],
        "by_head": [float(by_token[0][at] + by_token[1][at]) for at in (0, 2)],
        "best_head": [float(max(by_token[0][at], by_token[1][at])) for at in (0, 2)],
    }
    assert scores.flatten().tolist() == pytest.approx(wanted[how])


def test_heads_may_choose_for_themselves() -> None:
    from kvferry.backends.live.decoding.indexes.low_rank_keys import LowRankKeys

    adapters = torch.eye(2).reshape(1, 2, 1, 2)  # two key heads of width 1, both kept
    index = LowRankKeys(adapters, spec("low-rank-keys"), sequences=1, room_tokens=2)
    index.append(0, torch.tensor([[[[1.0], [2.0]], [[40.0], [3.0]]]]))
    queries = torch.tensor([[[[1.0]], [[10.0]]]])
    assert index.scores(0, queries, heads=2).tolist() == [[[1.0, 2.0], [400.0, 30.0]]]
    assert index.scores(0, queries, heads=1).tolist() == [[[401.0, 32.0]]]


# --- partial-keys ----------------------------------------------------------------------------------------------------


def test_partial_keys_choose_the_columns_of_largest_magnitude() -> None:
    """The skewing turns by a quarter: columns are the second number, and the first one negated. The prompt's magnitudes
    add up to 10 + 1 + 2 = 13 in the second numbers, to 5 + 6 + 7 = 18 in the first."""
    from kvferry.backends.live.decoding.indexes.projected_keys import PartialKeys

    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    index = PartialKeys(quarter[None, None], 1, spec("partial-keys"), sequences=1, room_tokens=3)
    keys = one_head([6.0, 1.0], [-7.0, 2.0])
    index.prefill(0, queries=one_head([5.0, 10.0]), keys=keys)
    assert index.projections[0, 0].flatten().tolist() == [-1.0, 0.0]
    # Of the query (2, 100) only the first number is seen.
    assert index.scores(0, one_head([2.0, 100.0]), heads=1).tolist() == [[[12.0, -14.0]]]
    # A token that is decoded is projected on the same columns.
    index.append(0, one_head([0.5, 50.0]))
    assert index.scores(0, one_head([2.0, 100.0]), heads=1).tolist() == [[[12.0, -14.0, 1.0]]]
    assert index.n_bytes == 3 * 4


# --- principal-keys --------------------------------------------------------------------------------------------------


def test_principal_keys_see_the_leading_components() -> None:
    """Of each of two heads one component is kept: the first number of one, the second of the other."""
    from kvferry.backends.live.decoding.indexes.projected_keys import PrincipalKeys

    components = torch.tensor([[[[1.0], [0.0]], [[0.0], [1.0]]]])
    index = PrincipalKeys(components, spec("principal-keys", heads=2, rank=2), sequences=1, room_tokens=2)
    index.append(0, torch.tensor([[[[1.0, 8.0], [2.0, 9.0]], [[8.0, 3.0], [9.0, 4.0]]]]))
    queries = torch.tensor([[[[10.0, 7.0]], [[7.0, 100.0]]]])
    assert index.scores(0, queries, heads=2).tolist() == [[[10.0, 20.0], [300.0, 400.0]]]
    assert index.scores(0, queries, heads=1).tolist() == [[[310.0, 420.0]]]


# --- landmarks -------------------------------------------------------------------------------------------------------


def test_landmarks_are_mean_keys() -> None:
    from kvferry.backends.live.decoding.indexes.block_vectors import Landmarks

    index = Landmarks(spec("landmarks", block_tokens=2), layers=1, kv_heads=1, head_dim=2, sequences=1, room_tokens=4)
    index.append(0, one_head([1.0, 0.0], [3.0, 2.0], [-4.0, 6.0], [0.0, 0.0]))
    # Means (2, 1) and (-2, 3).
    assert index.scores(0, one_head([10.0, 1.0]), heads=1).tolist() == [[[21.0, -17.0]]]
    # Heads of a group agree by their largest share: one wants the first block, the other the second.
    index.spec = spec("landmarks", block_tokens=2, scores="best_head")
    shares = index.scores(0, torch.tensor([[[[100.0, 0.0]], [[0.0, 100.0]]]]), heads=1)
    assert shares.flatten().tolist() == pytest.approx([1.0, 1.0])


# --- page-bounds -----------------------------------------------------------------------------------------------------


def test_page_bounds_take_the_better_bound_of_every_number() -> None:
    from kvferry.backends.live.decoding.indexes.block_vectors import PageBounds

    index = PageBounds(
        spec("page-bounds", block_tokens=2), layers=1, kv_heads=1, head_dim=2, sequences=1, room_tokens=4
    )
    index.append(0, one_head([1.0, 5.0], [3.0, -2.0], [-4.0, 6.0], [0.0, 7.0]))
    # Bounds (1..3, -2..5) and (-4..0, 6..7); the query wants the largest first and the least second number.
    assert index.scores(0, one_head([2.0, -1.0]), heads=1).tolist() == [[[6.0 + 2.0, 0.0 - 6.0]]]
    assert index.n_bytes == 2 * 2 * 2 * 4
