"""Which clusters lie side by side: by hand, and that none is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.layouts.co_retrieval import co_retrieval, orders, side_by_side


def test_chances_by_hand() -> None:
    # Pairs: 0 and 1 twice, 0 and 2 once, 1 and 2 once; 3 alone. Each pair counts in both orders.
    retrieved = np.array([[0, 1, -1], [0, 1, 2], [3, -1, -1]])
    chances = co_retrieval(retrieved, 4)
    assert chances.sum() == pytest.approx(1)
    assert (chances[0, 1], chances[1, 0], chances[0, 2], chances[2, 1]) == pytest.approx((0.25, 0.25, 0.125, 0.125))
    assert chances[3].tolist() == [0, 0, 0, 0]
    assert co_retrieval(np.array([[2], [2]]), 3).tolist() == np.zeros((3, 3)).tolist()


def test_pairs_and_their_order_by_hand() -> None:
    chances = np.zeros((5, 5))
    for (a, b), chance in {(1, 4): 0.5, (0, 3): 0.3, (0, 4): 0.2, (1, 3): 0.1, (0, 2): 0.25}.items():
        chances[a, b] = chances[b, a] = chance
    # 1 and 4, then 0 and 3; 2 would pair with 0, and is left. 4 and 0 come to lie side by side.
    assert side_by_side(chances).tolist() == [3, 0, 4, 1, 2]
    assert side_by_side(np.zeros((4, 4))).tolist() == [0, 1, 2, 3]
    assert side_by_side(np.zeros((1, 1))).tolist() == [0]
    assert orders(np.array([[[0, 2]], [[1, 2]]]), 3).tolist() == [[0, 2, 1], [1, 2, 0]]


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_the_best_pair_is_one_and_no_cluster_is_lost(clusters: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    retrieved = np.array([rng.permutation(clusters)[: max(1, clusters // 3)] for _ in range(20)])
    chances = co_retrieval(retrieved, clusters)
    order = side_by_side(chances)
    assert sorted(order.tolist()) == list(range(clusters))
    if chances.any():
        pairs = [chances[a, b] for a, b in zip(order[::2], order[1::2], strict=False)]
        assert max(pairs) == chances.max()


def test_how_many_pairs_are_looked_at_together_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    retrieved = np.stack([np.random.default_rng(n).permutation(41)[:9] for n in range(12)])
    chances = co_retrieval(retrieved, 41)
    whole = side_by_side(chances).tolist()
    assert sorted(whole) == list(range(41))
    monkeypatch.setattr("kvferry.layouts.co_retrieval._AT_ONCE", 1)
    assert side_by_side(chances).tolist() == whole
