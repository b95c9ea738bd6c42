"""Counts, means and variances that follow every key, against computing them anew."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.decode.cluster_table import ClusterTable


def test_a_key_joins_by_hand() -> None:
    table = ClusterTable(rows=1, most=3, width=2)
    keys = np.array([[[0.0, 0.0], [2.0, 0.0], [9.0, 9.0]]])
    table.fill(np.array([0]), keys, np.array([[0, 0, 1]]))
    assert table.counts.tolist() == [[2, 1, 0]]
    assert table.means[0, :2].tolist() == [[1.0, 0.0], [9.0, 9.0]]
    rows = np.zeros(2, int)
    # Each of two keys is 1 away from their mean.
    assert table.variances(rows, np.arange(2)).tolist() == [1.0, 0.0]
    nearest, squared = table.nearest(slice(None), np.array([[1.0, 3.0]]))
    assert (nearest.tolist(), squared.tolist()) == ([0], [9.0])
    table.join(np.array([0]), nearest, np.array([[1.0, 3.0]]))
    # The mean moves to (1, 1): squared distances 2, 2 and 4.
    assert table.means[0, 0].tolist() == [1.0, 1.0]
    assert table.variances(rows, np.arange(2)).tolist() == [8 / 3, 0.0]
    assert table.scores(slice(None), np.array([[1.0, 2.0]])).tolist() == [[3.0, 27.0]]
    table.set(0, 2, np.array([[4.0, 0.0]]))
    assert table.used.tolist() == [3]
    assert table.scores(slice(None), np.array([[1.0, 2.0]])).tolist() == [[3.0, 27.0, 4.0]]


def test_the_nearer_mean_is_found_also_where_it_is_the_longer_one() -> None:
    table = ClusterTable(rows=1, most=2, width=1)
    table.fill(np.array([0]), np.array([[[1.0], [9.0]]]), np.array([[0, 1]]))
    # 6 is 5 away from the first mean and 3 from the second.
    nearest, squared = table.nearest(slice(None), np.array([[6.0]]))
    assert (nearest.tolist(), squared.tolist()) == ([1], [9.0])


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.floats(-1e4, 1e4), st.lists(st.integers(0, 3), max_size=300))
def test_means_and_variances_equal_a_full_recomputation(
    seed: int, spread: float, offset: float, joins: list[int]
) -> None:
    """Within 1e-6, even where keys lie far from zero beside how far they lie apart."""
    chance = np.random.default_rng(seed)
    first = offset + spread * chance.standard_normal((2, 12, 5))
    labels = np.tile(np.arange(12) % 4, (2, 1))
    table = ClusterTable(rows=2, most=4, width=5)
    table.fill(np.arange(2), first, labels)
    members = {(row, block): list(first[row, labels[row] == block]) for row in range(2) for block in range(4)}
    for block in joins:
        keys = offset + spread * chance.standard_normal((2, 5))
        table.join(np.arange(2), np.array([block, 3 - block]), keys)
        members[0, block].append(keys[0])
        members[1, 3 - block].append(keys[1])
    for (row, block), held in members.items():
        whole = np.array(held)
        assert table.counts[row, block] == len(whole)
        np.testing.assert_allclose(table.means[row, block], whole.mean(0), rtol=1e-6, atol=1e-9)
        exact = ((whole - whole.mean(0)) ** 2).sum(1).mean()
        np.testing.assert_allclose(table.variances(np.array([row]), np.array([block]))[0], exact, rtol=1e-6)
