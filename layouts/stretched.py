"""Clusters that each lie in one stretch of the file."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout, PlacedClusters
from kvferry.layouts.layout import Wanted
from kvferry.layouts.pieces import Moves, Pieces, Reads, gathered_apart


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

    def follow(self, first: np.ndarray) -> None:
        """Gives every row what is in the buffers of the `first` row that is like it, int[all rows]."""
        if self._buffers:
            for of_rows in (self._now, self._updated, self._waiting, self._block_in):
                of_rows[:] = of_rows[first]

    def give_up(self, rows: np.ndarray, blocks: np.ndarray) -> None:
        """All of these blocks has been written, or is to be."""
        if not self._buffers or not len(rows):
            return
        self._waiting[rows, blocks] = 0
        held = self._block_in[rows]
        self._block_in[rows] = np.where(held == blocks[:, None], -1, held)


class Stretched(PlacedClusters):
    """A base of layouts in which a block's entries lie one behind the other, upwards or downwards."""

    def __init__(self, like: ClusterLayout) -> None:
        super().__init__(like)
        self._buffers = PageBuffers(like.all_rows, like.blocks, like.page_buffers, like.hot_steps)

    def reads_together(self, wanted: Sequence[Wanted]) -> list[list[Reads]]:
        like = self.like
        counts = [len(rows) for layers, rows, _ in wanted for _ in layers]
        flat = np.concatenate([(layers[:, None] * like.rows + rows).ravel() for layers, rows, _ in wanted])
        blocks = np.concatenate([np.tile(blocks, len(layers)) for layers, _, blocks in wanted])
        stored = self._stored(flat, blocks)
        if not stored.all():
            there = stored > 0
            counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[there], minlength=len(counts)).tolist()
            flat, blocks, stored = flat[there], blocks[there], stored[there]
        offsets, down = self._addresses(flat, blocks, np.zeros_like(flat), stored)
        pools = self._pools(flat, blocks)
        found = gathered_apart(offsets, stored, counts, like.token_bytes, like.alignment_bytes, pools)
        ends, columns = np.cumsum(counts).tolist(), (flat, blocks, stored, offsets, down)
        parts = (slice(end - n, end) for n, end in zip(counts, ends, strict=True))
        reads = (
            Reads(*commands, partial(self._whole_at, *(of[part] for of in columns)))
            for commands, part in zip(found, parts, strict=True)
        )
        return [list(islice(reads, len(layers))) for layers, _, _ in wanted]

    def _whole_at(
        self, rows: np.ndarray, blocks: np.ndarray, tokens: np.ndarray, offsets: np.ndarray, down: np.ndarray
    ) -> Pieces:
        """Blocks of `tokens`, whole, which lay there."""
        layers, rows = np.divmod(rows, self.like.rows)
        return Pieces(layers, rows, blocks, np.zeros_like(tokens), tokens, offsets, down, self.like.token_bytes)

    def whole(self, layer: int) -> Pieces:
        rows, blocks = np.nonzero(self._of_layer(self._tokens, layer))
        flat = layer * self.like.rows + rows
        stored = self._stored(flat, blocks)
        pieces = self._pieces(flat, blocks, np.zeros_like(stored), stored)
        return pieces.taken(stored > 0).of(np.array([layer]))

    def grow(self, layers: Any, rows: np.ndarray, blocks: np.ndarray, tokens: int = 1, here: Any = True) -> Pieces:
        like, flat = self.like, self._row(layers, rows)
        before = self._tokens[flat, blocks]
        moves, anew = self._make_room(flat, blocks, tokens, here)
        self._tokens[flat, blocks] += tokens
        self.counted.new_bytes += tokens * len(flat) * like.token_bytes
        again = Pieces.none(like.token_bytes)
        if anew.any():
            # Nothing of a block that is written again is left in a buffer.
            self._buffers.give_up(flat[anew], blocks[anew])
            again = self._pieces(flat[anew], blocks[anew], np.zeros_like(before[anew]), before[anew] + tokens)
            self.counted.moved_bytes += int(before[anew].sum()) * like.token_bytes
            flat, blocks, before = flat[~anew], blocks[~anew], before[~anew]
        page_tokens = like.page // like.token_bytes
        first, count, others = self._buffers.write(flat, blocks, before + tokens, tokens, page_tokens)
        if not self._written:
            return again
        parts = [self._pieces(flat, blocks, first, count), again]
        if len(others[0]):
            of_rows, of_blocks, waited = others
            parts.append(self._pieces(of_rows, of_blocks, self._tokens[of_rows, of_blocks] - waited, waited))
        written = Pieces.together(parts)
        return self._counted(written.taken(written.tokens > 0).after(moves))

    def _split(
        self, row: int, block: int, new: int, stay: int, leave: int, leaves: np.ndarray | None, beside: Collection[int]
    ) -> Pieces:
        stored = int(self._stored(row, block))
        moves, anew = self._divide(row, block, new, stay, leave, beside)
        self._tokens[row, block], self._tokens[row, new] = stay, leave
        self._buffers.give_up(np.array([row]), np.array([block]))
        if not self._written:
            return Pieces.none(self.like.token_bytes)
        # Entries before the first that leaves are where they were; those in a buffer have to be written at last.
        begin = 0 if anew or leaves is None else min(int(leaves.argmax()), stored)
        self.counted.moved_bytes += (stored - begin) * self.like.token_bytes
        written = self._pieces(
            np.array([row, row]), np.array([block, new]), np.array([begin, 0]), np.array([stay - begin, leave])
        )
        return written.taken(written.tokens > 0).after(moves)

    def _open(self, row: int, new: int, tokens: int) -> Pieces:
        moves, whole = self._settle(row, new, tokens), np.array([tokens])
        self._tokens[row, new] = tokens
        return self._pieces(np.array([row]), np.array([new]), np.zeros_like(whole), whole).after(moves)

    def _follow(self, first: np.ndarray) -> None:
        super()._follow(first)
        self._buffers.follow(first)

    def check(self) -> None:
        rows, blocks = np.nonzero(self._tokens)
        tokens = self._tokens[rows, blocks]
        pieces = self._pieces(rows, blocks, np.zeros_like(tokens), tokens)
        order = np.argsort(pieces.offsets)
        begins, ends = pieces.offsets[order], (pieces.offsets + pieces.lengths)[order]
        assert (begins[1:] >= ends[:-1]).all() and begins.min() >= 0 and ends.max() <= self.like.file_bytes

    # --- what a layout says --------------------------------------------------------------------------------------

    @abstractmethod
    def _addresses(
        self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Offset of each stretch of a block's entries, and whether they lie downwards in it."""

    @abstractmethod
    def _make_room(self, rows: np.ndarray, blocks: np.ndarray, tokens: int, here: Any) -> tuple[Moves, np.ndarray]:
        """Makes room for `tokens` more; returns what moves within the file, and for each block whether it has another
        place and has to be written as a whole. Called before they are counted. `here` is a flag, or one for each."""

    @abstractmethod
    def _divide(
        self, row: int, block: int, new: int, stay: int, leave: int, beside: Collection[int]
    ) -> tuple[Moves, bool]:
        """Places both parts of a block that is split, before they are counted: returns what moves within the file, and
        whether what stays has another place than the block had."""

    @abstractmethod
    def _settle(self, row: int, new: int, tokens: int) -> Moves:
        """Places a new block of `tokens`, before they are counted; returns what moves within the file."""

    def _pools(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray | None:
        """Blocks of equal number that are wanted together are read as one; None: none are."""
        return None

    # --- what they share -----------------------------------------------------------------------------------------

    def _pieces(self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray) -> Pieces:
        """Stretches of the blocks' entries, in the order given; none while nothing is written."""
        if not self._written:
            return Pieces.none(self.like.token_bytes)
        offsets, down = self._addresses(rows, blocks, firsts, tokens)
        layers, rows = np.divmod(rows, self.like.rows)
        return Pieces(layers, rows, blocks, firsts, tokens, offsets, down, self.like.token_bytes)

    def _stored(self, rows: Any, blocks: Any) -> Any:
        """Tokens of each block that are in the file."""
        return self._tokens[rows, blocks] - self._buffers.waiting(rows, blocks)
