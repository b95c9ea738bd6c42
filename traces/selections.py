"""Selection streams: which groups (or clusters) of a context each decoding step finds critical.

A stream stands in for the scoring that a real machine does: replaying ids costs almost nothing. Generated ones
have the two properties that caches live on: neighbouring steps share ids, and some groups are wanted far more
often than others. Left out: groups written while decoding (systems keep those in memory), and any likeness
between the heads or layers of a model.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvferry.traces.arrays import load_arrays, save_arrays

# The purpose of each random generator, first in its seed: numpy pads seeds with zeros at their end.
_PLACES, _STAYS, _CHOICES = 5, 6, 7


@dataclass(frozen=True, eq=False)
class SelectionStream:
    """``ids``: int32[steps, layers, heads or 1, k], ascending and distinct along k, below ``groups``."""

    ids: np.ndarray
    groups: int

    def __post_init__(self) -> None:
        if self.ids.ndim != 4 or self.ids.size == 0 or self.ids.dtype.kind not in "iu":
            raise ValueError(f"ids must be whole numbers [steps, layers, heads, k], got {self.ids.shape}")
        if self.ids.min() < 0 or self.ids.max() >= self.groups:
            raise ValueError(f"ids must lie in 0..{self.groups - 1}")
        if (np.diff(self.ids, axis=-1) <= 0).any():
            raise ValueError("the ids of a step must ascend")

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
        save_arrays(path, "selections", ids=self.ids, groups=np.array(self.groups))

    @classmethod
    def load(cls, path: Path) -> "SelectionStream":
        """Raises InputError when the file is not a selection stream."""
        return load_arrays(path, "selections", ("ids", "groups"), lambda ids, groups: cls(ids, int(groups)))


def generate_selections(
    steps: int,
    layers: int,
    heads: int,
    groups: int,
    k: int,
    seed: int,
    *,
    overlap: float = 0.75,
    skew: float = 1.0,
    sequence: int = 0,
) -> SelectionStream:
    """A stream whose neighbouring steps share `overlap` of their ids on average; a longer one of the same seed
    and sequence begins with a shorter one.

    The groups of a head are dealt at random to `k` places; each place holds one of its own, wanted in proportion
    to 1 / rank^skew, and chooses anew at random steps. Raises ValueError when fewer ids would be shared than
    chance alone shares.
    """
    if not 1 <= k <= groups:
        raise ValueError(f"k must lie in 1..{groups}, got {k}")
    # The first `longer` places have one group more than the others.
    longer = groups % k
    popularity = _popularity(groups // k, skew), _popularity(groups // k + 1, skew)
    # A fresh choice may fall on the same group again.
    again = ((k - longer) * (popularity[0] ** 2).sum() + longer * (popularity[1] ** 2).sum()) / k
    if not again <= overlap <= 1:
        raise ValueError(f"overlap must lie in {again:.3g}..1 for this skew, got {overlap}")
    stay = (overlap - again) / (1 - again) if again < 1 else 1.0
    drawn = [_layer(steps, heads, groups, k, stay, popularity, (seed, sequence, layer)) for layer in range(layers)]
    return SelectionStream(np.stack(drawn, axis=1), groups)


def _layer(
    steps: int,
    heads: int,
    groups: int,
    k: int,
    stay: float,
    popularity: tuple[np.ndarray, np.ndarray],
    seed: tuple[int, int, int],
) -> np.ndarray:
    """int32[steps, heads, k]."""
    places = np.random.default_rng([_PLACES, *seed])
    dealt = np.stack([places.permutation(groups) for _ in range(heads)])
    chooses = np.random.default_rng([_STAYS, *seed]).random((steps, heads, k)) >= stay
    chooses[0] = True
    uniform = np.random.default_rng([_CHOICES, *seed]).random((steps, heads, k))
    # Without the last sum, which may round to below 1: beyond the others lies the last group.
    short, long = (np.searchsorted(np.cumsum(shares)[:-1], uniform, "right") for shares in popularity)
    rank = np.where(np.arange(k) < groups % k, long, short)
    since = np.maximum.accumulate(np.where(chooses, np.arange(steps)[:, None, None], 0), axis=0)
    rank = np.take_along_axis(rank, since, axis=0)
    ids = np.take_along_axis(dealt[None], (rank * k + np.arange(k)).reshape(steps, heads, k), axis=2)
    return np.sort(ids, axis=2).astype(np.int32)


def _popularity(size: int, skew: float) -> np.ndarray:
    weights = np.arange(1, size + 1, dtype=float) ** -skew
    return weights / weights.sum()
