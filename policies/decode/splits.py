"""Clusters as new keys come to them: keys that join, splits that are asked for, and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np


@dataclass(frozen=True, slots=True)
class Joined:
    """A row's new key is in ``block`` now; ``delayed``: it waits in memory until the block is split."""

    row: int
    block: int
    delayed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSplit:
    """A row's block takes in what waited for it in memory, and the row's new key where that ``joins``: ``tokens`` then.
    A part of them becomes block ``new``. None: it stays whole. ``beside``: blocks that the new one may come to lie
    beside, as they were retrieved in the same step. ``read``: it was not retrieved, and is read first."""

    row: int
    block: int
    new: int | None
    joins: bool
    tokens: int
    beside: frozenset[int] = field(default=frozenset(), compare=False)
    read: bool = field(default=False, compare=False)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Returns row and block of what comes of it."""
        return [(self.row, block) for block in (self.block, self.new) if block is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Clustered:
    """Answers a Cluster op: ``tokens`` int64[rows, clusters] in each cluster of each row, none of them 0, and their
    ``variances`` float64[rows, clusters]: the mean squared distance of a cluster's keys to its centroid. ``labels``
    int[rows, tokens]: the cluster of each token, counted from the first. ``retrieved`` int[rows, queries, k]: the best
    clusters of each of the last queries, where those were asked for; -1 where a row has no more."""

    stream: ClassVar[str] = "clusters"

    tokens: np.ndarray
    variances: np.ndarray
    labels: np.ndarray | None = None
    retrieved: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SplitParts:
    """Answers a Split op, for each of its splits: ``tokens`` int64[splits, 2] that stay and that leave, and both parts'
    ``variances`` float64[splits, 2]. None leave where no new cluster is asked for, or keys are all equal. ``leaves``
    has for each split which tokens leave, bool[tokens] in the order in which they came."""

    stream: ClassVar[str] = "splits"

    tokens: np.ndarray
    variances: np.ndarray
    leaves: Sequence[np.ndarray] = ()
