"""Selection streams: which groups (or clusters) of a context each decoding step finds critical.

A stream stands in for the scoring that a real machine does: replaying ids costs almost nothing. Recorded ones are held
here; traces/critical_tokens.py generates the others, step by step.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvferry.traces.arrays import load_arrays, save_arrays

KIND = "selections"


@dataclass(frozen=True, eq=False)
class SelectionStream:
    """``ids``: int32[steps, layers, heads or 1, k], ascending and distinct along k, below ``groups``. ``ranked``: the
    best first, instead of ascending; such a stream is of one run and is not written to a file. ``scores``: float32,
    like the ids; None: they were not recorded."""

    ids: np.ndarray
    groups: int
    ranked: bool = False
    scores: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 4 or self.ids.size == 0 or self.ids.dtype.kind not in "iu":
            raise ValueError(f"ids must be whole numbers [steps, layers, heads, k], got {self.ids.shape}")
        if self.ids.min() < 0 or self.ids.max() >= self.groups:
            raise ValueError(f"ids must lie in 0..{self.groups - 1}")
        ascending = np.sort(self.ids, axis=-1) if self.ranked else self.ids
        if (np.diff(ascending, axis=-1) <= 0).any():
            raise ValueError(f"the ids of a step must {'differ' if self.ranked else 'ascend'}")
        if self.scores is not None and (self.scores.shape != self.ids.shape or self.scores.dtype.kind != "f"):
            raise ValueError(f"scores are numbers with a point, one for each id, got {self.scores.shape}")

    def overlaps(self) -> np.ndarray:
        """float[steps - 1]: the share of each step's ids that the step before had too, over layers and heads."""
        both = np.sort(np.concatenate([self.ids[:-1], self.ids[1:]], axis=-1), axis=-1)
        shared = (np.diff(both, axis=-1) == 0).sum(axis=-1)
        return shared.mean(axis=(1, 2)) / self.ids.shape[-1]

    def hot_share(self, accesses: float = 0.8) -> float:
        """The smallest share of groups that gets this share of all accesses, mean over layers and heads."""
        steps, layers, heads, k = self.ids.shape
        rows = np.arange(layers * heads).reshape(1, layers, heads, 1)
        counts = np.bincount((rows * self.groups + self.ids).ravel(), minlength=layers * heads * self.groups)
        ranked = np.sort(counts.reshape(-1, self.groups), axis=1)[:, ::-1]
        reached = np.cumsum(ranked, axis=1) >= accesses * steps * k
        return float((reached.argmax(axis=1) + 1).mean() / self.groups)

    def save(self, path: Path) -> None:
        if self.ranked:
            raise ValueError("a file has no room for the order of ranked ids")
        scores = {} if self.scores is None else {"scores": self.scores}
        save_arrays(path, KIND, ids=self.ids, groups=np.array(self.groups), **scores)

    @classmethod
    def load(cls, path: Path) -> "SelectionStream":
        """Raises InputError when the file is not a selection stream."""
        return load_arrays(
            path,
            KIND,
            ("ids", "groups"),
            lambda ids, groups, scores=None: cls(ids, int(groups), scores=scores),
            optional=("scores",),
        )
