"""Clusters that queries want together, and an order in which these lie side by side (DynaKV 5.1)."""

from collections.abc import Callable, Iterator

import numpy as np

from kvferry.system.array_memo import ArrayMemo

# Pairs that are looked at before those that may no longer be linked are left out.
_AT_ONCE = 512
_NONE = np.empty(0, np.int64)
# Layers that want the same get the same order.
_ORDERS = ArrayMemo(4)


def co_retrieval(retrieved: np.ndarray, clusters: int) -> np.ndarray:
    """float64[clusters, clusters]: the chance that a pair of clusters that a query wants is this one, by their
    frequency (DynaKV, Eq. 8). `retrieved` int[queries, k] are the clusters that queries wanted; -1: none. No cluster
    pairs with itself; all is 0 where no query wanted two."""
    pairs = np.concatenate([(row[:, None] * clusters + row).ravel() for row in _those_there(retrieved)] or [_NONE])
    together = np.bincount(pairs, minlength=clusters**2).reshape(clusters, clusters).astype(float)
    np.fill_diagonal(together, 0.0)
    total = together.sum()
    return np.asarray(together / total) if total else together


def side_by_side(chances: np.ndarray) -> np.ndarray:
    """An order int64[clusters], such that those at places 2n and 2n + 1 are pairs: of all pairs the one with the best
    chance, then the best of the rest, and so on. Pairs follow each other by the best chance of clusters that
    come to lie side by side. Without any chances they are in the order of their numbers."""
    first, second = np.nonzero(np.triu(chances))
    best = np.argsort(-chances[first, second], kind="stable")
    first, second = first[best], second[best]
    paired, rows = np.zeros(len(chances), bool), list[list[int]]()
    for a, b in _in_turn(first, second, lambda a, b: ~(paired[a] | paired[b])):
        if not (paired[a] or paired[b]):
            paired[[a, b]] = True
            rows.append([a, b])
    alone = np.flatnonzero(~paired).tolist()
    rows += [[a, b] for a, b in zip(alone[::2], alone[1::2], strict=False)]
    # The row that a cluster is an end of; -1: it is none.
    row_of = np.full(len(chances), -1)
    for number, row in enumerate(rows):
        row_of[row] = number
    for a, b in _in_turn(
        first, second, lambda a, b: (row_of[a] != row_of[b]) & (np.minimum(row_of[a], row_of[b]) >= 0)
    ):
        here, there = int(row_of[a]), int(row_of[b])
        if here == there or min(here, there) < 0:
            continue
        left, right = rows[here], rows[there]
        if left[-1] != a:
            left.reverse()
        if right[0] != b:
            right.reverse()
        left += right
        rows[there] = []
        row_of[[a, b]] = -1
        row_of[[left[0], left[-1]]] = here
    in_order = sorted((row for row in rows if row), key=min)
    return np.array([*(cluster for row in in_order for cluster in row), *alone[len(alone) // 2 * 2 :]], np.int64)


def _in_turn(
    first: np.ndarray, second: np.ndarray, may: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Iterator[tuple[int, int]]:
    """Yields pairs in order, without most of those that `may` no longer be linked: of thousands of clusters there are
    millions."""
    while len(first):
        still = may(first, second)
        first, second = first[still], second[still]
        yield from zip(first[:_AT_ONCE].tolist(), second[:_AT_ONCE].tolist(), strict=True)
        first, second = first[_AT_ONCE:], second[_AT_ONCE:]


def _those_there(retrieved: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the clusters that each query wanted."""
    return (row[row >= 0] for row in retrieved)


def orders(retrieved: np.ndarray, clusters: int) -> np.ndarray:
    """int64[rows, clusters]: the same for every row of `retrieved` int[rows, queries, k]; not to be written to."""
    return _ORDERS.of(retrieved, clusters, make=lambda: _orders(retrieved, clusters))


def _orders(retrieved: np.ndarray, clusters: int) -> np.ndarray:
    return np.stack([side_by_side(co_retrieval(of_row, clusters)) for of_row in retrieved])
