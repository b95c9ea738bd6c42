"""Clusters of generated keys: what a modelled machine answers ops about clusters with."""

from collections.abc import Sequence

import numpy as np

from kvferry.machine.answers import Answer, Assigned, Selection
from kvferry.machine.ops import Assign, Cluster, Op, OutputHead, Select, Split
from kvferry.policies.decode.cluster_table import ClusterTable
from kvferry.policies.decode.head_choice import agreed
from kvferry.policies.decode.means import Told, kmeans, two_means
from kvferry.policies.decode.splits import Clustered, ClusterSplit, Joined, SplitParts
from kvferry.specs.errors import KvferryError
from kvferry.system.array_memo import ArrayMemo
from kvferry.traces.key_process import KINDS, KeyProcess
from kvferry.traces.key_recording import KeyRecording


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


# Labels of prompts, of as many layers as are told apart: systems that are compared, and runtimes that one of them may
# run on, begin with the same.
_OF_PROMPTS = ArrayMemo(KINDS)

# Clusters are ranked by multiples of this.
_RANKED = 64


class ClusteredKeys:
    """The clusters of a run's rows, as policies decide about them: every key belongs to one, or waits for one.

    ``labels`` int32[rows, tokens] is the cluster of each key, -1 for keys that are still to come; ``waits`` (bool, like
    them) are the ones that wait in memory for a cluster to be split. Rows are of a few kinds of layers, ``table`` has
    what is known of their clusters; a layer of the same kind as another has the same rows.
    """

    def __init__(
        self,
        process: KeyProcess | KeyRecording,
        *,
        layers: int,
        sequences: int,
        heads: int,
        context: int,
        output: int,
        most: int,
        seed: int,
    ) -> None:
        self.kinds = process.kinds(layers)
        self.rows = sequences * heads
        self._heads, self._context = heads, context
        self.keys, self.queries = process.drawn(context + output, self.kinds, sequences, heads, seed)
        self.table = ClusterTable(len(self.keys), most, process.width)
        self.labels = np.full(self.keys.shape[:2], -1, np.int32)
        self.waits = np.zeros(self.labels.shape, bool)
        # Keys that wait for each cluster.
        self._waiting = np.zeros(self.table.counts.shape, np.int64)
        # Tokens that were skipped, and the step of the one under way.
        self._skipped, self._step = 0, -1
        self._ranked: np.ndarray | None = None
        self._nearest: tuple[np.ndarray, np.ndarray] | None = None
        self._scores: np.ndarray | None = None
        # By kind, what the present step's splits came to.
        self._parts: dict[int, tuple[Sequence[ClusterSplit], SplitParts]] = {}
        self._clustered: dict[tuple[int, int], Clustered] = {}
        self._told: Told = lambda done, of: None

    def __call__(self, op: Op) -> Answer | None:
        if isinstance(op, OutputHead):
            self._joined(op.joined)
            return None
        if isinstance(op, Cluster):
            return self._cluster(op)
        assert isinstance(op, Select | Assign | Split)
        self._go_to(op.step)
        of_kind = self._of_kind(op.layer)
        shape = -1, self._heads
        if isinstance(op, Select):
            return Selection(self._ranking(op.k)[of_kind].reshape(*shape, op.k))
        if isinstance(op, Assign):
            ids, squared = self.nearest()
            return Assigned(ids[of_kind].astype(np.int32).reshape(shape), squared[of_kind].reshape(shape))
        return self._answered(op)

    @property
    def entry(self) -> int:
        """Returns the place of the token under way among all tokens."""
        return self._context + self._skipped + self._step

    def nearest(self) -> tuple[np.ndarray, np.ndarray]:
        """The cluster that is nearest to the key under way in every row, and the squared distance."""
        if self._nearest is None:
            self._nearest = self.table.nearest(slice(None), self.keys[:, self.entry])
        return self._nearest

    def _ranking(self, k: int) -> np.ndarray:
        """int32[rows, k]: the clusters with the best scores, the best first."""
        if self._ranked is None or self._ranked.shape[1] < k:
            scores = self._all_scores()
            if scores.shape[1] < k:
                scores = np.pad(scores, ((0, 0), (0, k - scores.shape[1])), constant_values=-np.inf)
            # Layers ask for about as many: one ranking serves all.
            most = min(-(-k // _RANKED) * _RANKED, scores.shape[1])
            best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
            order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
            self._ranked = np.take_along_axis(best, order, 1).astype(np.int32)
        return self._ranked[:, :k]

    def _all_scores(self) -> np.ndarray:
        """float32[rows, clusters]: of the query under way."""
        if self._scores is None:
            self._scores = self._scored(slice(None), self.queries[:, self.entry])
        return self._scores

    def _scored(self, rows: slice | np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Returns scores for a query of each of these rows [rows, width], or for its query heads [rows, heads,
        width]."""
        if queries.ndim == 2:
            return self.table.scores(rows, queries)
        by_head = [self.table.scores(rows, of_head) for of_head in queries.swapaxes(0, 1)]
        return best_head(np.stack(by_head, axis=1), queries.shape[-1])

    def _of_kind(self, layer: int) -> slice:
        kind = layer % self.kinds
        return slice(kind * self.rows, (kind + 1) * self.rows)

    def _go_to(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._forget()

    def _forget(self) -> None:
        """Drops the answers about the token before."""
        self._ranked, self._nearest, self._scores, self._parts = None, None, None, {}

    def watch(self, told: Told) -> None:
        self._told = told

    # --- ahead of time ----------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        self._skipped += 1
        self._forget()

    def retrieved(self, layers: np.ndarray, rows: np.ndarray, clusters: np.ndarray, tokens: float) -> np.ndarray:
        if not len(rows):
            return np.empty(0, bool)
        at = layers * self.rows + rows
        scores = self._all_scores()[at]
        width = scores.shape[1]
        better = scores > scores[np.arange(len(at)), clusters][:, None]
        before = (better * (self.table.counts[at, :width] + self._waiting[at, :width])).sum(1)
        return np.asarray(before < tokens)

    def split(self, splits: Sequence[tuple[int, ClusterSplit]]) -> SplitParts:
        if not splits:
            return SplitParts(np.empty((0, 2), np.int64), np.empty((0, 2)))
        return self._split([(layer * self.rows + split.row, split) for layer, split in splits])

    def join(self, layers: np.ndarray, rows: np.ndarray, clusters: np.ndarray, *, waiting: bool) -> None:
        if len(rows):
            self._join(layers * self.rows + rows, clusters, waiting)

    def group(self, tokens: int, clusters: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        _, labels = self._group(slice(None), tokens, clusters, first)
        return self.table.counts[:, first : first + clusters].copy(), labels

    def best(self, tokens: float) -> np.ndarray:
        """bool[rows, clusters]: of the clusters as they are now, the ones that the query under way wants most, until
        they hold this many tokens."""
        scores = self._scored(slice(None), self.queries[:, self.entry])
        order = np.argsort(-scores, axis=1, kind="stable")
        held = np.take_along_axis((self.table.counts + self._waiting)[:, : scores.shape[1]], order, 1)
        found = np.zeros(scores.shape, bool)
        np.put_along_axis(found, order, (np.cumsum(held, axis=1) - held < tokens) & (held > 0), 1)
        return found

    def joined(self) -> np.ndarray:
        """int32[rows]: the cluster that the key under way is in; -1: none yet."""
        return np.where(self.waits[:, self.entry], -1, self.labels[:, self.entry])

    def recall(self, tokens: float) -> tuple[float, float]:
        """Returns two means over rows: how much of the `tokens` entries that the query under way wants most is in
        memory or in the clusters taken until they hold `tokens`; and the share of all entries that these clusters
        hold."""
        end, found = self.entry, self.best(tokens)
        wanted = best_entries(self.keys[:, :end], self.queries[:, end], max(1, round(tokens)))
        rows = np.arange(len(found))[:, None]
        labels = self.labels[rows, wanted]
        had = found[rows, np.maximum(labels, 0)] | (labels < 0) | self.waits[rows, wanted]
        held = (found * (self.table.counts + self._waiting)[:, : found.shape[1]]).sum(1)
        return float(had.mean()), float(held.mean() / end)

    # --- what policies decide ---------------------------------------------------------------------------------------

    def prompts(self, layer: int, clusters: int) -> Clustered:
        """Clusters of the context of a layer."""
        return self._cluster(Cluster(1, self._context, clusters, layer, heads=self._heads))

    def _cluster(self, op: Cluster) -> Clustered:
        """Returns the clusters of the prompts, or of the newest tokens."""
        place = op.layer % self.kinds, op.step
        if place not in self._clustered:
            of_kind = self._of_kind(op.layer)
            if op.step >= 0:
                self._go_to(op.step)
            told = self._told_of(op.layer % self.kinds) if op.step < 0 else lambda done, of: None
            rows, labels = self._group(of_kind, op.tokens, op.clusters, op.first, told)
            clusters = np.arange(op.first, op.first + op.clusters)
            tokens = self.table.counts[of_kind, op.first : op.first + op.clusters].copy()
            self._clustered = {key: one for key, one in self._clustered.items() if key[1] == op.step}
            variances = self.table.variances(rows[:, None], clusters)
            self._clustered[place] = Clustered(tokens, variances, labels, self._references(of_kind, op))
        return self._clustered[place]

    def _told_of(self, kind: int) -> Told:
        """Kinds are clustered one after the other, and take equally long."""
        return lambda done, of: self._told(kind * of + done, self.kinds * of)

    def _references(self, rows: slice, op: Cluster) -> np.ndarray | None:
        """int[rows, queries, k]: the best clusters of the last queries of the prompts."""
        if not op.references:
            return None
        end = self._context
        of_queries = [
            np.argsort(-self._scored(rows, self.queries[rows, at]), axis=1, kind="stable")[:, : op.k]
            for at in range(max(0, end - op.references), end)
        ]
        return np.stack(of_queries, axis=1)

    def _group(
        self, rows: slice, tokens: int, clusters: int, first: int, told: Told = lambda done, of: None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make clusters of the newest tokens of rows: the rows' numbers, and the cluster of each token."""
        part = slice(self.entry + 1 - tokens, self.entry + 1)
        keys, numbers = self.keys[rows, part], np.arange(len(self.keys))[rows]
        of_prompts = part.start == 0 and part.stop == self._context

        def made() -> np.ndarray:
            return kmeans(keys, clusters, told=told)

        found = _OF_PROMPTS.of(keys, clusters, make=made) if of_prompts else made()
        self.labels[rows, part] = first + found
        self.table.fill(numbers, keys, found, first)
        return numbers, found

    def _answered(self, op: Split) -> SplitParts:
        kind = op.layer % self.kinds
        if kind not in self._parts:
            self._parts[kind] = op.splits, self.split([(kind, split) for split in op.splits])
        splits, parts = self._parts[kind]
        if tuple(splits) != tuple(op.splits):
            raise KvferryError(f"layer {op.layer} splits other clusters than layer {kind}, which is like it")
        return parts

    def _split(self, splits: Sequence[tuple[int, ClusterSplit]]) -> SplitParts:
        """Splits clusters in these rows."""
        for row, split in splits:
            if split.joins:
                self.labels[row, self.entry] = split.block
        end = self.entry + 1
        members = [np.flatnonzero(self.labels[row, :end] == split.block) for row, split in splits]
        sizes = np.array([len(each) for each in members])
        there = np.arange(sizes.max()) < sizes[:, None]
        vectors = np.zeros((*there.shape, self.keys.shape[2]))
        for n, (row, _) in enumerate(splits):
            vectors[n, : sizes[n]] = self.keys[row, members[n]]
        leaves = two_means(vectors, there)
        tokens, variances = np.zeros((len(splits), 2), np.int64), np.zeros((len(splits), 2))
        for n, (row, split) in enumerate(splits):
            self.waits[row, members[n]], self._waiting[row, split.block] = False, 0
            leaving = leaves[n, : sizes[n]] & (split.new is not None)
            for part, (cluster, inside) in enumerate(((split.block, ~leaving), (split.new, leaving))):
                if cluster is not None:
                    self.labels[row, members[n][inside]] = cluster
                    self.table.set(row, cluster, vectors[n, : sizes[n]][inside])
                    tokens[n, part] = self.table.counts[row, cluster]
                    variances[n, part] = self.table.squares[row, cluster] / tokens[n, part]
        left = [of[:n] & (split.new is not None) for of, n, (_, split) in zip(leaves, sizes, splits, strict=True)]
        return SplitParts(tokens, variances, left)

    def _joined(self, joined: Sequence[Sequence[Joined] | None]) -> None:
        """Enters the keys under way into their clusters; splits have been made."""
        places = {False: list[tuple[int, int]](), True: list[tuple[int, int]]()}
        for kind, of_layer in enumerate(joined[: self.kinds]):
            for one in of_layer or ():
                places[one.delayed].append((kind * self.rows + one.row, one.block))
        for waiting, some in places.items():
            if some:
                rows, clusters = np.array(some).T
                self._join(rows, clusters, waiting)

    def _join(self, rows: np.ndarray, clusters: np.ndarray, waiting: bool) -> None:
        """The keys under way of these rows, all different, join clusters, or wait for them."""
        self.labels[rows, self.entry] = clusters
        if waiting:
            self.waits[rows, self.entry] = True
            self._waiting[rows, clusters] += 1
        else:
            self.table.join(rows, clusters, self.keys[rows, self.entry])
