"""How much queries want keys, and clusters of them."""

from functools import cached_property

import numpy as np

from kvferry.policies.decode.cluster_table import ClusterTable
from kvferry.policies.decode.head_choice import agreed

# Clusters are ranked by multiples of this.
_RANKED = 64


def best_entries(keys: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """int32[rows, k], ascending: of keys [rows, n, width] those with the largest products with queries [rows, width],
    or that the best of several query heads [rows, heads, width] wants most."""
    if queries.ndim == 2:
        scores = np.einsum("rnd,rd->rn", keys, queries)
    else:
        scores = best_head(np.einsum("rnd,rhd->rhn", keys, queries), queries.shape[-1])
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    best.sort(axis=1)
    return best.astype(np.int32)


def best_head(scores: np.ndarray, width: int) -> np.ndarray:
    """[rows, n]: of the scores [rows, query heads, n] of what a row's query heads choose from together, the share of
    attention that the head gives it which gives it most, as real machines have it; -inf where nothing is."""
    shares = agreed(scores, 1, "best_head", width**-0.5)[:, 0]
    return np.where(np.isfinite(scores[:, 0]), shares, -np.inf)


def scored(table: ClusterTable, rows: slice | np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Returns scores for a query of each of these rows [rows, width], or for its query heads [rows, heads,
    width]."""
    if queries.ndim == 2:
        return table.scores(rows, queries)
    by_head = [table.scores(rows, of_head) for of_head in queries.swapaxes(0, 1)]
    return best_head(np.stack(by_head, axis=1), queries.shape[-1])


class TokenScores:
    """The clusters of every row beside the `key` and the `query` of one token, as they were when first asked for."""

    def __init__(self, table: ClusterTable, key: np.ndarray, query: np.ndarray) -> None:
        self._table, self._key, self._query = table, key, query
        self._ranked: np.ndarray | None = None

    @cached_property
    def nearest(self) -> tuple[np.ndarray, np.ndarray]:
        """The cluster that is nearest to the key in every row, and the squared distance."""
        return self._table.nearest(slice(None), self._key)

    @cached_property
    def scores(self) -> np.ndarray:
        """float32[rows, clusters]"""
        return scored(self._table, slice(None), self._query)

    def ranking(self, k: int) -> np.ndarray:
        """int32[rows, k]: the clusters with the best scores, the best first."""
        if self._ranked is None or self._ranked.shape[1] < k:
            scores = self.scores
            if scores.shape[1] < k:
                scores = np.pad(scores, ((0, 0), (0, k - scores.shape[1])), constant_values=-np.inf)
            # Layers ask for about as many: one ranking serves all.
            most = min(-(-k // _RANKED) * _RANKED, scores.shape[1])
            best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
            order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
            self._ranked = np.take_along_axis(best, order, 1).astype(np.int32)
        return self._ranked[:, :k]
