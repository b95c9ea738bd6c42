"""A layout of blocks that grow, split and move: each has a pool of its own in the file."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout, up
from kvferry.layouts.pieces import Moves
from kvferry.layouts.pool_places import PoolPlaces
from kvferry.layouts.stretched import Stretched


@dataclass(frozen=True, kw_only=True)
class PoolLayout(ClusterLayout):
    """A pool has room for ``spare`` times the tokens that it is made for, and begins at a multiple of
    ``alignment_bytes``. The file has ``file_spare`` times the room of the pools that all blocks would take at first.
    """

    spare: int = 2
    file_spare: int = 2

    @property
    def pool_bytes(self) -> int:
        """Returns the bytes of a pool made for a block as there are at first."""
        return int(self.pool_of(self.block_tokens + bool(self.more)))

    def pool_of(self, tokens: Any) -> Any:
        """Returns the bytes of a pool, or of each, made for `tokens`."""
        return up(self.spare * tokens * self.token_bytes, max(self.alignment_bytes, self.page))

    @property
    def file_bytes(self) -> int:
        return self.file_spare * self.all_rows * self.blocks * self.pool_bytes

    def start(self) -> "Pools":
        return Pools(self)


class Pools(Stretched):
    """A block that has moved leaves its pool to others."""

    like: PoolLayout

    def __init__(self, like: PoolLayout) -> None:
        super().__init__(like)
        self._places = PoolPlaces(self._tokens.shape, like.file_bytes)
        self._pool_bytes = np.zeros_like(self._tokens)

    @property
    def taken_bytes(self) -> int:
        return self._places.file.end

    def check(self) -> None:
        super().check()
        rows, blocks = np.nonzero(self._tokens)
        begins, n_bytes = self._places.at[rows, blocks], self._pool_bytes[rows, blocks]
        assert (self._tokens[rows, blocks] * self.like.token_bytes <= n_bytes).all()
        self._places.file.check(begins, n_bytes)

    def _set_out(self) -> None:
        self._places.wait()

    def _follow(self, first: np.ndarray) -> None:
        super()._follow(first)
        self._pool_bytes[:] = self._pool_bytes[first]
        self._places.follow(first)

    def _place(self, rows: np.ndarray, order: np.ndarray, members: np.ndarray | None) -> None:
        in_order, blocks = np.repeat(rows, order.shape[1]), order.ravel()
        there = self._tokens[in_order, blocks] > 0
        in_order, blocks = in_order[there], blocks[there]
        n_bytes = np.maximum(self.like.pool_of(self._tokens[in_order, blocks]), self.like.pool_bytes)
        at, file = self._places.at, self._places.file
        if file.free:
            # Made again: as far as there is room between others.
            at[in_order, blocks] = [file.take(size) for size in n_bytes.tolist()]
        else:
            at[in_order, blocks] = file.take_together(n_bytes)
        self._pool_bytes[in_order, blocks] = n_bytes

    def _empty(self, rows: np.ndarray) -> None:
        at, blocks = np.nonzero(self._tokens[rows])
        of_rows = rows[at]
        self._buffers.give_up(of_rows, blocks)
        pools = of_rows.tolist(), blocks.tolist(), self._pool_bytes[of_rows, blocks].tolist()
        for row, block, n_bytes in zip(*pools, strict=True):
            self._places.give_back(row, block, n_bytes)

    def _addresses(
        self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._places.at[rows, blocks] + firsts * self.like.token_bytes, np.zeros(len(rows), bool)

    def _fits(self, rows: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
        fits: np.ndarray = (self._tokens[rows, blocks] + tokens) * self.like.token_bytes <= self._pool_bytes[
            rows, blocks
        ]
        return fits

    def _make_room(self, rows: np.ndarray, blocks: np.ndarray, tokens: int, here: Any) -> tuple[Moves, np.ndarray]:
        here = np.broadcast_to(here, rows.shape)
        moving = np.flatnonzero(~self._fits(rows, blocks, tokens))
        sources, targets, lengths = [], [], []
        for row, block in zip(rows[moving].tolist(), blocks[moving].tolist(), strict=True):
            self._places.step()
            sources.append(int(self._places.at[row, block]))
            lengths.append(int(self._stored(row, block)) * self.like.token_bytes)
            self._places.give_back(row, block, int(self._pool_bytes[row, block]))
            self._take_pool(row, block, int(self.like.pool_of(int(self._tokens[row, block]) + tokens)))
            targets.append(int(self._places.at[row, block]))
        anew = np.zeros(len(rows), bool)
        anew[moving] = here[moving]
        away = ~here[moving]
        places = (
            np.array(part, np.int64)[away] for part in (rows[moving] // self.like.rows, sources, targets, lengths)
        )
        return Moves(*places), anew

    def _divide(
        self, row: int, block: int, new: int, stay: int, leave: int, beside: Collection[int]
    ) -> tuple[Moves, bool]:
        self._places.step()
        self._take_pool(row, new, int(self.like.pool_of(leave)))
        anew = stay * self.like.token_bytes > self._pool_bytes[row, block]
        if anew:
            self._places.give_back(row, block, int(self._pool_bytes[row, block]))
            self._take_pool(row, block, int(self.like.pool_of(stay)))
        return Moves.none(), bool(anew)

    def _settle(self, row: int, new: int, tokens: int) -> Moves:
        self._places.step()
        self._take_pool(row, new, int(self.like.pool_of(tokens)))
        return Moves.none()

    def _take_pool(self, row: int, block: int, n_bytes: int) -> None:
        self._places.take(row, block, n_bytes)
        self._pool_bytes[row, block] = n_bytes
