"""Generated keys, one by one: which entries of the KV cache a query wants most, with no clusters in between."""

import numpy as np

from kvferry.machine.answers import Selection
from kvferry.machine.ops import Selecting
from kvferry.traces.key_process import KeyProcess
from kvferry.traces.key_recording import KeyRecording


class KeyedEntries:
    """Answers Select ops with the entries whose keys have the largest products with the query: those that clusters are
    to find. The same keys as those of ClusteredKeys with the same seed."""

    def __init__(
        self,
        process: KeyProcess | KeyRecording,
        *,
        layers: int,
        sequences: int,
        heads: int,
        context: int,
        output: int,
        seed: int,
    ) -> None:
        self.kinds, self._rows = process.kinds(layers), sequences * heads
        self._heads, self._context, self._skipped, self._step = heads, context, 0, -1
        self.keys, self.queries = process.drawn(context + output, self.kinds, sequences, heads, seed)
        self._best: dict[int, np.ndarray] = {}

    def go_on(self) -> None:
        """To the next token, without any time."""
        self._skipped += 1

    def __call__(self, op: Selecting) -> Selection:
        """Of the op's entries, those that are there when its step comes, ascending."""
        if op.step != self._step:
            self._step, self._best = op.step, {}
        kind = op.layer % self.kinds
        if kind not in self._best:
            rows, entry = slice(kind * self._rows, (kind + 1) * self._rows), self._context + self._skipped + op.step
            self._best[kind] = best_entries(self.keys[rows, : op.groups], self.queries[rows, entry], op.k)
        return Selection(self._best[kind].reshape(-1, self._heads, op.k))


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
    scaled = scores * width**-0.5
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    shares: np.ndarray = (weights / weights.sum(-1, keepdims=True)).max(1)
    return np.where(np.isfinite(scores[:, 0]), shares, -np.inf)
