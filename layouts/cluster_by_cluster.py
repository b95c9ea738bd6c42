"""A layout in which the clusters of a row lie one behind the other without room between them: what DynaKV 5.2 and its
Fig. 13 compare with."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout, Parts, up
from kvferry.layouts.pieces import Moves
from kvferry.layouts.stretched import Stretched
from kvferry.specs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ContiguousLayout(ClusterLayout):
    """A row has room for its tokens alone. Whatever lies behind a cluster that grows moves."""

    moves: ClassVar[bool] = True

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
        return int(up(self._lengths * self.like.token_bytes, self.like.alignment_bytes).sum())

    def _place(self, rows: np.ndarray, order: np.ndarray, members: np.ndarray | None) -> None:
        sizes = np.take_along_axis(self._tokens[rows], order, axis=1)
        self._starts[rows[:, None], order] = np.cumsum(sizes, axis=1) - sizes
        self._lengths[rows] = sizes.sum(axis=1)
        self._check_room(rows)

    def _addresses(
        self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        like = self.like
        offsets = rows * like.row_bytes + (self._starts[rows, blocks] + firsts) * like.token_bytes
        return offsets, np.zeros(len(rows), bool)

    def _fits(self, rows: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
        last = self._starts[rows, blocks] + self._tokens[rows, blocks] == self._lengths[rows]
        return np.asarray(last & (self._lengths[rows] + tokens <= self.like.most_row_tokens))

    def _make_room(
        self, rows: np.ndarray, blocks: np.ndarray, tokens: int, here: np.ndarray
    ) -> tuple[Moves, np.ndarray]:
        unit, begins = self.like.token_bytes, self._starts[rows, blocks]
        ends = begins + self._tokens[rows, blocks]
        sources = rows * self.like.row_bytes + ends * unit
        lengths = (self._lengths[rows] - ends) * unit
        starts = self._starts[rows]
        self._starts[rows] = starts + tokens * (starts > begins[:, None])
        self._lengths[rows] += tokens
        self._check_room(rows)
        moving = lengths > 0
        layers = rows[moving] // self.like.rows
        moves = Moves(layers, sources[moving], sources[moving] + tokens * unit, lengths[moving])
        return moves, np.zeros(len(rows), bool)

    def _divide(self, parts: Parts, beside: Collection[int]) -> tuple[Moves, bool]:
        row, block, new, stay, leave = parts
        more = stay + leave - int(self._tokens[row, block])
        moves, _ = self._make_room(np.array([row]), np.array([block]), more, np.array([True]))
        self._starts[row, new] = self._starts[row, block] + stay
        return moves if more else Moves.none(), False

    def _settle(self, row: int, new: int, tokens: int) -> None:
        self._starts[row, new] = self._lengths[row]
        self._lengths[row] += tokens
        self._check_room(np.array([row]))

    def _check_room(self, rows: np.ndarray) -> None:
        most = int(self._lengths[rows].max(initial=0))
        if most > self.like.most_row_tokens:
            what = f"a row has room for {self.like.most_row_tokens:,} tokens, {most:,} are wanted"
            raise InputError(f"policies.layout: {what}; a longer workload.output makes it longer")
