"""Pools of a file that two clusters share: which ends they grow from, and which clusters are alone."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvferry.layouts.pool_places import PoolPlaces


class SharedPools:
    """Pools of blocks of `tokens` int64[rows, blocks], which are counted elsewhere, of `token_bytes` each. A pool whose
    larger cluster has n tokens is of `pool_of(n)` bytes."""

    def __init__(self, tokens: np.ndarray, token_bytes: int, pool_of: Callable[[Any], Any], file_bytes: int) -> None:
        self._tokens, self._token_bytes, self._pool_of = tokens, token_bytes, pool_of
        # Of each block's pool: where it begins, and its size.
        self.places = PoolPlaces(tokens.shape, file_bytes)
        self.n_bytes = np.zeros_like(tokens)
        # The cluster that grows downwards from the pool's end; -1: the block has no partner.
        self.down = np.zeros(tokens.shape, bool)
        self.partner = np.full_like(tokens, -1)
        # By row, clusters whose pools have room for a partner.
        self.alone: list[list[int]] = [[] for _ in range(len(tokens))]

    def fill(
        self, rows: np.ndarray, firsts: np.ndarray, seconds: np.ndarray, both: np.ndarray, n_bytes: np.ndarray
    ) -> None:
        """Gives pools of `n_bytes` to pairs of blocks of rows; bool `both`: where there is a second one."""
        at = self.places.file.take_together(n_bytes)
        for blocks, which in ((firsts, np.ones(len(both), bool)), (seconds, both)):
            self.places.at[rows[which], blocks[which]] = at[which]
            self.n_bytes[rows[which], blocks[which]] = n_bytes[which]
        self.down[rows[both], seconds[both]] = True
        self.partner[rows[both], seconds[both]] = firsts[both]
        self.partner[rows[both], firsts[both]] = seconds[both]
        for row, block in zip(rows[~both].tolist(), firsts[~both].tolist(), strict=True):
            self.alone[row].append(block)

    def held(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Tokens of each block and its partner."""
        partners = self.partner[rows, blocks]
        held: np.ndarray = self._tokens[rows, blocks] + np.where(partners >= 0, self._tokens[rows, partners], 0)
        return held

    def leave(self, row: int, block: int) -> None:
        """A block gives up its place; its partner is alone then."""
        partner = int(self.partner[row, block])
        if partner >= 0:
            self.partner[row, partner] = self.partner[row, block] = -1
            self.alone[row].append(partner)
        else:
            self.alone[row].remove(block)
            self.places.give_back(row, block, int(self.n_bytes[row, block]))

    def find(self, row: int, block: int, tokens: int, partners: Sequence[int], down: bool | None = None) -> None:
        """Finds a place for a block of `tokens` beside the last of `partners`, which are alone, that has room for it,
        or in a pool of its own: it may take its half of a pool, and no more than its partner leaves. `down`: how it is
        to grow, where that is not free."""
        n_bytes = tokens * self._token_bytes
        for partner in reversed(partners):
            room = int(self.n_bytes[row, partner])
            taken = int(self._tokens[row, partner]) * self._token_bytes
            free = down is None or down != bool(self.down[row, partner])
            if free and n_bytes <= min(room // 2, room - taken):
                self.alone[row].remove(partner)
                self.places.join(row, block, partner)
                self.n_bytes[row, block] = room
                self.down[row, block] = not self.down[row, partner]
                self.partner[row, block], self.partner[row, partner] = partner, block
                return
        self.n_bytes[row, block] = size = int(self._pool_of(tokens))
        self.places.take(row, block, size)
        self.down[row, block], self.partner[row, block] = bool(down), -1
        self.alone[row].append(block)

    def pair(self, row: int, block: int, other: int) -> list[int]:
        """Gives two blocks places beside each other, with room for a token more; returns which of them have moved."""
        unit = self._token_bytes
        for one, there in ((block, other), (other, block)):
            room, tokens = int(self.n_bytes[row, there]), int(self._tokens[row, one]) + 1
            left = room - (int(self._tokens[row, there]) + 1) * unit
            if there in self.alone[row] and tokens * unit <= min(room // 2, left):
                self.leave(row, one)
                self.find(row, one, tokens, (there,))
                return [one]
        larger, smaller = sorted((block, other), key=lambda one: -int(self._tokens[row, one]))
        self.leave(row, larger)
        self.leave(row, smaller)
        self.find(row, larger, int(self._tokens[row, larger]) + 1, ())
        self.find(row, smaller, int(self._tokens[row, smaller]) + 1, (larger,))
        return [larger, smaller]

    def follow(self, first: np.ndarray) -> None:
        """Gives every row what the `first` row that is like it (int[all rows]) has come to, since places wait."""
        for of_rows in (self.n_bytes, self.down, self.partner):
            of_rows[:] = of_rows[first]
        self.alone[:] = [list(self.alone[row]) for row in first.tolist()]
        self.places.follow(first)

    def check(self) -> None:
        """AssertionError when a pool is not of its clusters, or the file not of its pools."""
        rows, blocks = np.nonzero(self._tokens)
        partners = self.partner[rows, blocks]
        paired = partners >= 0
        # Partners have each other, one pool, and different ends of it.
        mine, theirs = (rows[paired], blocks[paired]), (rows[paired], partners[paired])
        assert (self.partner[theirs] == mine[1]).all()
        at = self.places.at
        assert (at[theirs] == at[mine]).all() and (self.down[theirs] != self.down[mine]).all()
        assert (self.held(rows, blocks) * self._token_bytes <= self.n_bytes[rows, blocks]).all()
        alone = {(row, block) for row, of_row in enumerate(self.alone) for block in of_row}
        assert alone == set(zip(rows[~paired].tolist(), blocks[~paired].tolist(), strict=True))
        # Pools of clusters and free pools make up the file, each once.
        one = ~self.down[rows, blocks] | ~paired
        begins, n_bytes = at[rows, blocks][one], self.n_bytes[rows, blocks][one]
        self.places.file.check(begins, n_bytes)
