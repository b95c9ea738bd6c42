"""Clusters that queries want together, and an order in which these lie side by side (DynaKV 5.1)."""

import numpy as np


def co_retrieval(retrieved: np.ndarray, clusters: int) -> np.ndarray:
    """float64[clusters, clusters]: the chance that a pair of clusters that a query wants is this one, by their
    frequency (DynaKV, Eq. 8). `retrieved` int[queries, k] are the clusters that queries wanted; -1: none. No cluster
    pairs with itself; all is 0 where no query wanted two."""
    wants = np.zeros((len(retrieved), clusters + 1))
    np.put_along_axis(wants, retrieved, 1.0, axis=1)
    together = wants[:, :-1].T @ wants[:, :-1]
    np.fill_diagonal(together, 0.0)
    total = together.sum()
    return np.asarray(together / total) if total else together


def side_by_side(chances: np.ndarray) -> np.ndarray:
    """An order int64[clusters], such that those at places 2n and 2n + 1 are pairs: of all pairs the one with the best
    chance, then the best of the rest, and so on. Pairs follow each other by the best chance of clusters that
    come to lie side by side. Without any chances they are in the order of their numbers."""
    first, second = np.nonzero(np.triu(chances))
    best = np.argsort(-chances[first, second], kind="stable")
    links = list(zip(first[best].tolist(), second[best].tolist(), strict=True))
    # Rows of clusters, an even number in each, by every cluster that is in one.
    rows: dict[int, list[int]] = {}
    for a, b in links:
        if a not in rows and b not in rows:
            rows[a] = rows[b] = [a, b]
    alone = [cluster for cluster in range(len(chances)) if cluster not in rows]
    for a, b in zip(alone[::2], alone[1::2], strict=False):
        rows[a] = rows[b] = [a, b]
    for a, b in links:
        left, right = rows.get(a), rows.get(b)
        if left is None or right is None or left is right:
            continue
        if a in (left[0], left[-1]) and b in (right[0], right[-1]):
            if left[-1] != a:
                left.reverse()
            if right[0] != b:
                right.reverse()
            left += right
            rows |= dict.fromkeys(right, left)
    one_by_one = {id(row): row for _, row in sorted(rows.items())}
    paired = [cluster for row in one_by_one.values() for cluster in row]
    return np.array([*paired, *(cluster for cluster in alone if cluster not in rows)], np.int64)


def orders(retrieved: np.ndarray, clusters: int) -> np.ndarray:
    """int64[rows, clusters]: the same for every row of `retrieved` int[rows, queries, k]."""
    return np.stack([side_by_side(co_retrieval(of_row, clusters)) for of_row in retrieved])
