"""Counts, means and variances of the clusters of many rows, kept up to date key by key (DynaKV 4)."""

from typing import Any

import numpy as np


class ClusterTable:
    """Rows of up to `most` clusters of keys with `width` numbers. A cluster is a number below ``used`` of its row.

    ``counts`` int64[rows, most], ``means`` float64[rows, most, width] and ``squares`` float64[rows, most], the summed
    squared distances to the mean, follow every key by Welford's update, in which nothing cancels. Single-precision
    copies serve to find what is nearest and what is best.
    """

    def __init__(self, rows: int, most: int, width: int) -> None:
        self.used = np.zeros(rows, np.int64)
        self.counts = np.zeros((rows, most), np.int64)
        self.means = np.zeros((rows, most, width))
        self.squares = np.zeros((rows, most))
        # Side by side for products; half the squared length of each, endless where there is no cluster.
        self._points = np.zeros((rows, width, most), np.float32)
        self._halves = np.full((rows, most), np.inf, np.float32)

    def variances(self, rows: slice | np.ndarray, clusters: slice | np.ndarray) -> np.ndarray:
        """Returns the mean squared distance of each cluster's keys to its mean; 0 for a cluster without keys."""
        return np.asarray(self.squares[rows, clusters] / np.maximum(self.counts[rows, clusters], 1))

    def fill(self, rows: np.ndarray, vectors: np.ndarray, labels: np.ndarray, first: int = 0) -> None:
        """Adds clusters of rows int[r], from number `first` on: of vectors [r, n, width], the ones that `labels` int[r,
        n] names, none of them empty. Rows have no others from `first` on afterwards."""
        clusters = int(labels.max()) + 1
        flat, n = (np.arange(len(rows))[:, None] * clusters + labels).ravel(), len(rows) * clusters
        counts = np.bincount(flat, minlength=n)
        assert counts.min() > 0, "a cluster is empty"
        wide = vectors.reshape(len(flat), -1).astype(float)
        means = np.stack([np.bincount(flat, of, n) for of in wide.T], -1) / counts[:, None]
        squares = np.bincount(flat, ((wide - means[flat]) ** 2).sum(-1), n)
        self.counts[rows, first:], self.squares[rows, first:], self._halves[rows, first:] = 0, 0, np.inf
        new = slice(first, first + clusters)
        self.used[rows] = first + clusters
        self.counts[rows, new] = counts.reshape(-1, clusters)
        self.squares[rows, new] = squares.reshape(-1, clusters)
        self.means[rows, new] = means = means.reshape(len(rows), clusters, -1)
        self._points[rows, :, new] = means.swapaxes(1, 2)
        self._halves[rows, new] = (means**2).sum(-1) / 2

    def nearest(self, rows: slice, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns int64[r] and float64[r]: the cluster whose mean is nearest to each row's vector [r, width], and the
        squared distance to it. Of equally near ones the first."""
        width = int(self.used[rows].max())
        products = vectors[:, None].astype(np.float32) @ self._points[rows, :, :width]
        found = np.asarray((self._halves[rows, :width] - products[:, 0]).argmin(1))
        apart = vectors - self.means[rows][np.arange(len(found)), found]
        return found, (apart**2).sum(-1)

    def scores(self, rows: slice | np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Returns float32[r, clusters]: products of each row's query [r, width] with the means of its clusters, as many
        as any row has; -inf for absent ones."""
        width = int(self.used.max())
        products = (queries[:, None].astype(np.float32) @ self._points[rows, :, :width])[:, 0]
        return np.where(np.isfinite(self._halves[rows, :width]), products, -np.inf)

    def join(self, rows: np.ndarray, clusters: np.ndarray, vectors: np.ndarray) -> None:
        """Each row's vector [r, width] joins a cluster int[r]; rows are distinct."""
        self.counts[rows, clusters] = counts = self.counts[rows, clusters] + 1
        before = self.means[rows, clusters]
        apart = vectors - before
        self.means[rows, clusters] = means = before + apart / counts[:, None]
        self.squares[rows, clusters] += (apart * (vectors - means)).sum(-1)
        self._copy(rows, clusters, means)
        self.used[rows] = np.maximum(self.used[rows], clusters + 1)

    def set(self, row: int, cluster: int, vectors: np.ndarray) -> None:
        """A cluster's keys are these [n, width], and no others."""
        self.counts[row, cluster] = len(vectors)
        self.means[row, cluster] = mean = vectors.mean(0, dtype=float)
        self.squares[row, cluster] = ((vectors - mean) ** 2).sum()
        self._copy(row, cluster, mean)
        self.used[row] = max(self.used[row], cluster + 1)

    def _copy(self, rows: Any, clusters: Any, means: np.ndarray) -> None:
        """Keeps the means of a cluster in each row, or of one cluster, as scores are worked out from them."""
        self._points[rows, :, clusters] = means
        self._halves[rows, clusters] = (means**2).sum(-1) / 2
