"""Which entries of the KV cache a query wants most, with no clusters or blocks in between."""

import numpy as np

from kvferry.policies.decode.head_choice import agreed


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
