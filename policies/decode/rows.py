"""KV blocks by row, and where they are: what selector, residency, layout and machine hand to each other.

A row is a sequence, or a part of its KV heads that chooses for itself. Rows are equally long (dense, one array with a
row each) or ragged (one array with where each row starts), as clusters need it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Holds ids of KV blocks, distinct within a row. Dense: ``ids`` [rows, k]. Ragged: ``ids`` [n], where row r has
    those from ``starts[r]`` up to ``starts[r + 1]``."""

    ids: np.ndarray
    starts: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.starts is None:
            assert self.ids.ndim == 2, self.ids.shape
        else:
            assert self.ids.ndim == 1 and self.starts[0] == 0 and self.starts[-1] == len(self.ids), self.starts

    @staticmethod
    def of(places: Iterable[tuple[int, int]], rows: int) -> "BlockRows":
        """Ragged, of pairs of row and id, all different."""
        found = np.array(sorted(places), np.int64).reshape(-1, 2)
        return BlockRows(found[:, 1], np.searchsorted(found[:, 0], np.arange(rows + 1)))

    @staticmethod
    def where(flags: np.ndarray) -> "BlockRows":
        """Returns the flagged blocks, bool[rows, blocks], ragged."""
        rows, ids = np.nonzero(flags)
        return BlockRows(ids, np.searchsorted(rows, np.arange(len(flags) + 1)))

    @property
    def rows(self) -> int:
        return len(self.ids) if self.starts is None else len(self.starts) - 1

    @property
    def widest(self) -> int:
        """Returns the blocks of the longest row."""
        return self.ids.shape[1] if self.starts is None else int(_counts(self.starts).max(initial=0))

    def row(self, row: int) -> np.ndarray:
        """Returns ids of one row."""
        return self.ids[row] if self.starts is None else self.ids[self.starts[row] : self.starts[row + 1]]

    def spread(self, per_row: np.ndarray) -> np.ndarray:
        """Returns a value per row [rows], for every block of the row: it broadcasts with ``ids``."""
        return per_row[:, None] if self.starts is None else np.repeat(per_row, _counts(self.starts))

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and ids of all blocks, row by row."""
        if self.starts is None:
            return self.flagged(np.ones(self.ids.shape, bool))
        return self.spread(np.arange(self.rows)), self.ids

    def count(self, flags: np.ndarray) -> np.ndarray:
        """Returns int64[rows]: how many blocks of each row have their flag (like ``ids``) set."""
        if self.starts is None:
            return np.asarray(flags.sum(axis=1))
        before = np.zeros(len(flags) + 1, np.int64)
        flags.cumsum(out=before[1:])
        return _counts(before[self.starts])

    def flagged(self, flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and ids of the blocks whose flag is set, row by row."""
        return np.repeat(np.arange(self.rows), self.count(flags)), self.ids[flags]


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Says where wanted blocks are. ``missing`` (bool, like the ids) are to be moved to the processor's memory first;
    then all lie in their ``slots`` (like the ids; None: nothing is kept, they lie in the order in which they came).
    Where a slot is the number of its block, ``dropped`` are rows and ids of what has left since the last look-up."""

    wanted: BlockRows
    missing: np.ndarray
    slots: np.ndarray | None = None
    dropped: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def hits(self) -> int:
        return self.missing.size - int(np.count_nonzero(self.missing))

    @property
    def to_move(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and ids of what is missing, row by row."""
        return self.wanted.flagged(self.missing)


def _counts(starts: np.ndarray) -> np.ndarray:
    """Returns how many there are from each of these to the next: as np.diff, which takes ten times as long for few."""
    counts: np.ndarray = starts[1:] - starts[:-1]
    return counts
