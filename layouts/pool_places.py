"""Places pools of blocks in the file: one by one, or for many layers at once after tokens were skipped."""

from typing import NamedTuple

import numpy as np

from kvferry.layouts.file_room import FileRoom


class _Change(NamedTuple):
    """A row's block takes a pool of `n_bytes`, or gives it back (``taken`` False); or lies in that of a block beside
    it."""

    row: int
    block: int
    n_bytes: int
    taken: bool = True
    beside: int | None = None


class PoolPlaces:
    """Keeps ``at`` int64[rows, blocks], the byte offset of each block's pool in the file.

    Between ``wait`` and ``follow`` no place is asked for. Changes of one row are kept in order, and then carried out
    for that row and for each row like it.
    """

    def __init__(self, shape: tuple[int, ...], file_bytes: int) -> None:
        self.file = FileRoom(file_bytes)
        self.at = np.zeros(shape, np.int64)
        # Changes that wait, those of one step of a row together; None: none has to wait.
        self._waiting: list[list[_Change]] | None = None

    def step(self) -> None:
        """Begins a group of changes that ``follow`` carries out for one row as a whole, before the next row like it."""
        if self._waiting is not None:
            self._waiting.append([])

    def take(self, row: int, block: int, n_bytes: int) -> None:
        """Gives a block a pool of its own. Raises InputError when the file has no room."""
        self._change(_Change(row, block, n_bytes))

    def give_back(self, row: int, block: int, n_bytes: int) -> None:
        self._change(_Change(row, block, n_bytes, taken=False))

    def join(self, row: int, block: int, beside: int) -> None:
        self._change(_Change(row, block, 0, beside=beside))

    def wait(self) -> None:
        """Has changes wait from now on."""
        self._waiting = []

    def follow(self, first: np.ndarray) -> None:
        """Carries out the waiting changes, each group for every row whose `first` row (int[all rows]) made it. Raises
        InputError when the file has no room."""
        assert self._waiting is not None
        steps, self._waiting = self._waiting, None
        like: dict[int, list[int]] = {}
        for row, of in enumerate(first.tolist()):
            like.setdefault(of, []).append(row)
        for changes in steps:
            for row in like[changes[0].row] if changes else ():
                for change in changes:
                    self._carry_out(row, change)

    def _change(self, change: _Change) -> None:
        if self._waiting is None:
            self._carry_out(change.row, change)
        else:
            self._waiting[-1].append(change)

    def _carry_out(self, row: int, change: _Change) -> None:
        if change.beside is not None:
            self.at[row, change.block] = self.at[row, change.beside]
        elif change.taken:
            self.at[row, change.block] = self.file.take(change.n_bytes)
        else:
            self.file.give_back(int(self.at[row, change.block]), change.n_bytes)
