"""What a machine answers ops with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What a Select or Retrieve op chose; the scores of what was not chosen stay on the machine.

    ``ids`` is int32[batch, head or 1, k]; or, where rows (a sequence, or a head of it that chooses for itself) differ
    in length, int32[n], of which row r has those from ``starts[r]`` up to ``starts[r + 1]``. ``scores`` float32 are
    like them, the more, the better; None: a recording has none.
    """

    stream: ClassVar[str] = "selections"

    ids: np.ndarray
    starts: np.ndarray | None = None
    scores: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """What an Assign op found: ``ids`` is int32[batch, head or 1], the cluster whose centroid is nearest to each new
    key, ``squared`` float64[batch, head or 1] the squared distance between them."""

    stream: ClassVar[str] = "assignments"

    ids: np.ndarray
    squared: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Clustered:
    """What a Cluster op found: ``tokens`` int64[rows, clusters] in each cluster of each row, none of them 0, and their
    ``variances`` float64[rows, clusters]: the mean squared distance of a cluster's keys to its centroid. ``labels``
    int[rows, tokens]: the cluster of each token, counted from the first. ``retrieved`` int[rows, queries, k]: the best
    clusters of each of the last queries, where those were asked for; -1 where a row has no more."""

    stream: ClassVar[str] = "clusters"

    tokens: np.ndarray
    variances: np.ndarray
    labels: np.ndarray | None = None
    retrieved: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Divided:
    """What a Split op found, for each of its cuts: ``tokens`` int64[cuts, 2] that stay and that leave, and both parts'
    ``variances`` float64[cuts, 2]. None leave where the cut asks for no new cluster, or keys are all equal. ``leaves``
    has for each cut which tokens leave, bool[tokens] in the order in which they came."""

    stream: ClassVar[str] = "splits"

    tokens: np.ndarray
    variances: np.ndarray
    leaves: Sequence[np.ndarray] = ()


# What ops answer with.
Answer = Selection | Assigned | Clustered | Divided
