"""What a machine answers ops with."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvferry.policies.decode.splits import Clustered, SplitParts


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What a Select or Retrieve op chose; the scores of what was not chosen stay on the machine.

    ``ids`` is int32[batch, head or 1, k]; or, where rows (a sequence, or a head of it that chooses for itself) differ
    in length, int32[n], where row r has those from ``starts[r]`` up to ``starts[r + 1]``. ``scores`` float32 are
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


# What ops answer with.
Answer = Selection | Assigned | Clustered | SplitParts
