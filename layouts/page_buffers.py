"""Buffers in memory for the last entries of clusters that are often updated, until they fill a page (DynaKV 5.2)."""

import numpy as np


class PageBuffers:
    """Gives `buffers` blocks of each row a page buffer: blocks updated again within `hot_steps` updates of their row.
    Where all are taken, the block whose own was updated longest ago gives its up. Without buffers every entry is
    written as it comes."""

    def __init__(self, rows: int, blocks: int, buffers: int, hot_steps: int) -> None:
        self._buffers, self._hot_steps = buffers, hot_steps
        if not buffers:
            return
        # By row: its updates so far, the update that was a block's last, and tokens of it that wait.
        self._now = np.zeros(rows, np.int64)
        self._updated = np.full((rows, blocks), -hot_steps - 1, np.int64)
        self._waiting = np.zeros((rows, blocks), np.int64)
        # The block of each buffer; -1: none.
        self._block_in = np.full((rows, buffers), -1, np.int64)

    def waiting(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray | int:
        """Tokens of each block that are in its buffer, and not in the file."""
        return self._waiting[rows, blocks] if self._buffers else 0

    def write(
        self, rows: np.ndarray, blocks: np.ndarray, tokens: np.ndarray, more: int, page_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Blocks of different rows have `tokens` now, `more` of them new: the first entry of each that is to be written
        and how many. Besides, of blocks that give their buffer up: rows, blocks, and how many of their last entries are
        to be written. A buffer is written up to the last whole page of `page_tokens`, as entries of the block lie."""
        if not self._buffers or page_tokens < 1:
            nothing = np.empty(0, np.int64)
            return tokens - more, np.full(len(rows), more), (nothing, nothing, nothing)
        self._now[rows] += 1
        hot = self._now[rows] - self._updated[rows, blocks] <= self._hot_steps
        self._updated[rows, blocks] = self._now[rows]
        held = self._block_in[rows]
        has = (held == blocks[:, None]).any(axis=1)
        # The one that was updated longest ago, or none.
        last = np.where(held >= 0, self._updated[rows[:, None], held], -(1 << 60))
        oldest = last.argmin(axis=1)
        takes = hot & ~has
        leaving = np.where(takes, held[np.arange(len(rows)), oldest], -1)
        out_rows, out = rows[leaving >= 0], leaving[leaving >= 0]
        others = out_rows, out, self._waiting[out_rows, out]
        self._waiting[out_rows, out] = 0
        self._block_in[rows[takes], oldest[takes]] = blocks[takes]
        buffered = has | takes
        first = tokens - more - self._waiting[rows, blocks]
        whole = np.where(buffered, tokens // page_tokens * page_tokens, tokens)
        count = np.maximum(whole - first, 0)
        self._waiting[rows, blocks] = tokens - first - count
        return first, count, others

    def give_up(self, rows: np.ndarray, blocks: np.ndarray) -> None:
        """All of these blocks has been written, or is to be."""
        if not self._buffers or not len(rows):
            return
        self._waiting[rows, blocks] = 0
        held = self._block_in[rows]
        self._block_in[rows] = np.where(held == blocks[:, None], -1, held)
