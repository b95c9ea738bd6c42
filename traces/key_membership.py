"""Which cluster each key is in."""

from collections.abc import Sequence

import numpy as np

from kvferry.policies.decode.cluster_table import ClusterTable
from kvferry.policies.decode.means import two_means
from kvferry.policies.decode.splits import ClusterSplit, SplitParts


class KeyMembership:
    """Every key [rows, tokens] belongs to a cluster, or waits for one.

    ``labels`` int32[rows, tokens] is the cluster of each key, -1 for keys that are still to come; ``waits`` (bool, like
    them) are the ones that wait in memory for a cluster to be split. ``table`` has what is known of the clusters.
    """

    def __init__(self, keys: np.ndarray, table: ClusterTable) -> None:
        self._keys, self.table = keys, table
        self.labels = np.full(keys.shape[:2], -1, np.int32)
        self.waits = np.zeros(self.labels.shape, bool)
        # Keys that wait for each cluster.
        self._waiting = np.zeros(table.counts.shape, np.int64)

    def held(self, rows: slice | np.ndarray, clusters: int) -> np.ndarray:
        """int64[rows, clusters]: keys of the first clusters of these rows, with those that wait for them."""
        return np.asarray(self.table.counts[rows, :clusters] + self._waiting[rows, :clusters])

    def fill(self, rows: slice, part: slice, labels: np.ndarray, first: int) -> None:
        """Keys of this part of the rows are in new clusters, from number `first` on."""
        self.labels[rows, part] = first + labels
        self.table.fill(np.arange(len(self.labels))[rows], self._keys[rows, part], labels, first)

    def join(self, entry: int, rows: np.ndarray, clusters: np.ndarray, *, waiting: bool) -> None:
        """An entry's keys of these rows, all different, join clusters, or wait for them."""
        self.labels[rows, entry] = clusters
        if waiting:
            self.waits[rows, entry] = True
            self._waiting[rows, clusters] += 1
        else:
            self.table.join(rows, clusters, self._keys[rows, entry])

    def split(self, splits: Sequence[tuple[int, ClusterSplit]], entry: int) -> SplitParts:
        """Splits clusters in these rows; some the key of an entry joins first."""
        for row, split in splits:
            if split.joins:
                self.labels[row, entry] = split.block
        end = entry + 1
        members = [np.flatnonzero(self.labels[row, :end] == split.block) for row, split in splits]
        sizes = np.array([len(each) for each in members])
        there = np.arange(sizes.max()) < sizes[:, None]
        vectors = np.zeros((*there.shape, self._keys.shape[2]))
        for n, (row, _) in enumerate(splits):
            vectors[n, : sizes[n]] = self._keys[row, members[n]]
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
