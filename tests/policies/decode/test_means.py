"""K-means and 2-means by hand, and what has to hold of any input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvferry.policies.decode import means
from kvferry.policies.decode.means import kmeans, two_means

POINTS = st.floats(-100, 100, width=32).map(lambda x: round(x, 1))


def test_heaps_are_found_by_hand() -> None:
    # Two rows of the same four heaps of three, the other way round.
    heaps = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [50.0, 50.0]], 3, axis=0)
    noise = np.tile([[0.1, 0.0], [0.0, 0.1], [-0.1, 0.0]], (4, 1))
    both = np.stack([heaps + noise, (heaps + noise)[::-1]])
    found = kmeans(both, 4)
    assert found.tolist() == [np.repeat(np.arange(4), 3).tolist()] * 2


def test_few_distances_at_once_give_the_same_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(3).integers(0, 9, (2, 50, 2)).astype(np.float32)
    whole = kmeans(vectors, 7)
    monkeypatch.setattr(means, "_ONE_THREAD", 3 * 7 * 2)
    assert kmeans(vectors, 7).tolist() == whole.tolist()
    sizes, product = list[tuple[int, ...]](), np.matmul
    monkeypatch.setattr(
        np, "matmul", lambda some, *more, **out: sizes.append(some.shape[:-1]) or product(some, *more, **out)
    )
    kmeans(vectors, 7, rounds=1)
    # Sixteen products of three rows each, and one of two.
    assert sizes == 2 * [(16, 3), (2,)]
    monkeypatch.setattr(means, "_TILE", 5 * 3 * 7)
    assert kmeans(vectors, 7).tolist() == whole.tolist()


def test_rows_whose_distances_are_many_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(3).integers(0, 9, (3, 20, 2)).astype(np.float32)
    whole, told = kmeans(vectors, 4), list[tuple[int, int]]()
    monkeypatch.setattr(means, "_CHUNK", 1)
    assert kmeans(vectors, 4, told=lambda done, of: told.append((done, of))).tolist() == whole.tolist()
    # Eight rounds for each of three rows.
    assert told[-1] == (24, 24) and {(8, 24), (16, 24)} <= set(told)


def test_two_heaps_are_told_apart_and_the_smaller_leaves() -> None:
    vectors = np.array([[0.0], [10.0], [0.5], [11.0], [0.2], [77.0]])[None]
    # What is not there does not count.
    there = np.array([[True, True, True, True, True, False]])
    assert two_means(vectors, there).tolist() == [[False, True, False, True, False, False]]


def test_of_equal_parts_the_one_that_is_farther_from_the_first_vector_leaves() -> None:
    # All are equally far from their mean, 5: the first is taken for the farthest.
    vectors = np.array([0.0, 10.0, 0.0, 10.0])[None, :, None]
    assert two_means(vectors, np.ones((1, 4), bool)).tolist() == [[False, True, False, True]]


def test_a_first_cut_into_halves_is_no_last_one() -> None:
    # Nearest to 1 and to 19 are the first three and the later two; to their means, 7 and 15, all but the last one.
    vectors = np.array([1.0, 10.0, 10.0, 11.0, 19.0])[None, :, None]
    there = np.ones((1, 5), bool)
    assert two_means(vectors, there).tolist() == [[False, False, False, False, True]]


def test_vectors_that_are_all_equal_are_cut_in_halves() -> None:
    there = np.array([[True, False, True, True, True, True], [True, True, False, False, False, False]])
    assert two_means(np.ones((2, 6, 3)), there).tolist() == [
        [False, False, False, False, True, True],
        [False, True, False, False, False, False],
    ]
    assert sorted(np.bincount(kmeans(np.ones((1, 7, 3)), 3)[0]).tolist()) == [1, 1, 5]


def test_fewer_vectors_than_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match="3 vectors cannot make 4 clusters"):
        kmeans(np.zeros((1, 3, 2)), 4)
    assert kmeans(np.arange(3.0).reshape(1, 3, 1), 3).tolist() == [[0, 1, 2]]
    assert kmeans(np.arange(3.0).reshape(1, 3, 1), 1).tolist() == [[0, 0, 0]]


@given(
    arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 3)), elements=POINTS), st.data()
)
def test_no_cluster_is_empty_whatever_the_vectors(vectors: np.ndarray, data: st.DataObject) -> None:
    clusters = data.draw(st.integers(1, vectors.shape[1]), "clusters")
    found = kmeans(vectors, clusters)
    assert found.shape == vectors.shape[:2]
    for row in found:
        assert sorted(set(row.tolist())) == list(range(clusters))


@given(
    arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(2, 20), st.integers(1, 3)), elements=POINTS), st.data()
)
def test_neither_part_is_empty_whatever_the_vectors(vectors: np.ndarray, data: st.DataObject) -> None:
    n = [data.draw(st.integers(2, vectors.shape[1])) for _ in vectors]
    there = np.arange(vectors.shape[1]) < np.array(n)[:, None]
    leaves = two_means(vectors, there)
    assert not (leaves & ~there).any()
    for row, (of_row, its) in enumerate(zip(leaves, there, strict=True)):
        assert 0 < of_row.sum() <= its.sum() / 2
        whole, parts = vectors[row, its], (vectors[row, of_row], vectors[row, its & ~of_row])
        spread = sum(((part - part.mean(0)) ** 2).sum() for part in parts)
        assert spread <= ((whole - whole.mean(0)) ** 2).sum() * (1 + 1e-5) + 1e-6
