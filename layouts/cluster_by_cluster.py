"""A layout in which the clusters of a row lie one behind the other without room between them: what DynaKV 5.2 and its
Fig. 13 compare with."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout, up
from kvferry.layouts.pieces import Moves
from kvferry.layouts.stretched import Stretched
from kvferry.specs.errors import InputError

# Within which clusters lie against each other.
Extent = Literal["row", "layer", "file"]


@dataclass(frozen=True, kw_only=True)
class ContiguousLayout(ClusterLayout):
    """Whatever lies behind a cluster that grows moves, as far as clusters lie against each other: in its row alone,
    which has room for its tokens, in its layer, or in the whole ``extent``."""

    moves: ClassVar[bool] = True

    extent: Extent = "file"

    @property
    def row_bytes(self) -> int:
        return int(up(self.most_row_tokens * self.token_bytes, max(self.alignment_bytes, self.page)))

    @property
    def file_bytes(self) -> int:
        return self.all_rows * self.row_bytes

    def start(self) -> "Contiguous":
        return Contiguous(self)


class Contiguous(Stretched):
    """A part that leaves a cluster lies behind it, a cluster that opens behind all others."""

    like: ContiguousLayout

    def __init__(self, like: ContiguousLayout) -> None:
        super().__init__(like)
        # Tokens of the row before each block's first one.
        self._starts = np.zeros_like(self._tokens)
        self._lengths = np.zeros(like.all_rows, np.int64)

    @property
    def taken_bytes(self) -> int:
        extents = self._lengths.reshape(-1, self._together).sum(axis=1)
        return int(up(extents * self.like.token_bytes, self.like.alignment_bytes).sum())

    @property
    def _together(self) -> int:
        """Rows of an extent."""
        return {"row": 1, "layer": self.like.rows, "file": self.like.all_rows}[self.like.extent]

    def _follow(self, first: np.ndarray) -> None:
        super()._follow(first)
        for of_rows in (self._starts, self._lengths):
            of_rows[:] = of_rows[first]

    def _begins(self) -> np.ndarray:
        """int64[all rows]: where each row begins in the file, behind those before it in its extent."""
        before = _before(self._lengths.reshape(-1, self._together)) * self.like.token_bytes
        firsts = np.arange(len(before))[:, None] * self._together * self.like.row_bytes
        return (firsts + before).ravel()

    def _place(self, rows: np.ndarray, order: np.ndarray, members: np.ndarray | None) -> None:
        sizes = np.take_along_axis(self._tokens[rows], order, axis=1)
        self._starts[rows[:, None], order] = np.cumsum(sizes, axis=1) - sizes
        self._lengths[rows] = sizes.sum(axis=1)
        self._check_room(rows)

    def _addresses(
        self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        offsets = self._begins()[rows] + (self._starts[rows, blocks] + firsts) * self.like.token_bytes
        return offsets, np.zeros(len(rows), bool)

    def _fits(self, rows: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
        last = self._starts[rows, blocks] + self._tokens[rows, blocks] == self._lengths[rows]
        last &= (
            self._lengths.reshape(-1, self._together)[:, ::-1].cumsum(axis=1)[:, ::-1].ravel()[rows]
            == self._lengths[rows]
        )
        return np.asarray(last & (self._lengths[rows] + tokens <= self.like.most_row_tokens))

    def _make_room(self, rows: np.ndarray, blocks: np.ndarray, tokens: int, here: Any) -> tuple[Moves, np.ndarray]:
        ends = self._starts[rows, blocks] + self._tokens[rows, blocks]
        moves = self._pushed(rows, ends, tokens)
        starts = self._starts[rows]
        self._starts[rows] = starts + tokens * (starts > self._starts[rows, blocks][:, None])
        self._lengths[rows] += tokens
        self._check_room(rows)
        return moves, np.zeros(len(rows), bool)

    def _pushed(self, rows: np.ndarray, at: np.ndarray, tokens: int) -> Moves:
        """Returns what moves where `tokens` come between the tokens of these rows, behind the first `at` of each;
        nothing while nothing is written."""
        if not self._written:
            return Moves.none()
        unit, together, lengths = self.like.token_bytes, self._together, self._lengths
        more, kept = np.zeros_like(lengths), lengths.copy()
        more[rows], kept[rows] = tokens * unit, at
        by_more = _before(more.reshape(-1, together)).ravel()
        # Of each row what lies before its new tokens, and what behind.
        begins = self._begins()[:, None] + np.stack([np.zeros_like(kept), kept], axis=1) * unit
        n_bytes = np.stack([kept, lengths - kept], axis=1) * unit
        by = np.stack([by_more, by_more + more], axis=1)
        layers = np.broadcast_to(np.arange(len(lengths))[:, None] // self.like.rows, by.shape)
        moving = (n_bytes > 0) & (by > 0)
        sources, n_bytes, by, layers = (of[moving] for of in (begins, n_bytes, by, layers))
        if not len(sources):
            return Moves.none()
        apart = (sources[1:] != sources[:-1] + n_bytes[:-1]) | (by[1:] != by[:-1]) | (layers[1:] != layers[:-1])
        first = np.flatnonzero(np.concatenate([[True], apart]))
        return Moves(layers[first], sources[first], sources[first] + by[first], np.add.reduceat(n_bytes, first))

    def _divide(
        self, row: int, block: int, new: int, stay: int, leave: int, beside: Collection[int]
    ) -> tuple[Moves, bool]:
        more = stay + leave - int(self._tokens[row, block])
        moves, _ = self._make_room(np.array([row]), np.array([block]), more, np.array([True]))
        self._starts[row, new] = self._starts[row, block] + stay
        return moves if more else Moves.none(), False

    def _settle(self, row: int, new: int, tokens: int) -> Moves:
        rows = np.array([row])
        moves = self._pushed(rows, self._lengths[rows], tokens)
        self._starts[row, new] = self._lengths[row]
        self._lengths[row] += tokens
        self._check_room(rows)
        return moves

    def _check_room(self, rows: np.ndarray) -> None:
        most = int(self._lengths[rows].max(initial=0))
        if most > self.like.most_row_tokens:
            what = f"a row has room for {self.like.most_row_tokens:,} tokens, {most:,} are wanted"
            raise InputError(f"policies.layout: {what}; a longer workload.output makes it longer")


def _before(n: np.ndarray) -> np.ndarray:
    """Returns sums of what stands before each number in its row."""
    sums: np.ndarray = np.cumsum(n, axis=1) - n
    return sums
