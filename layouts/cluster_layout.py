"""A base of layouts of clusters: sizes of the file, and clusters of a run that grow, split and are counted
(DynaKV 5)."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvferry.layouts.co_retrieval import orders
from kvferry.layouts.layout import Layout, LayoutCounts, Ranges, Wanted
from kvferry.layouts.pieces import Pieces, Reads
from kvferry.specs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ClusterLayout(ABC):
    """Has in each row of a layer ``first_blocks`` blocks of ``block_tokens`` at first, the first ``more`` of them with
    one token more; there is room for ``blocks`` blocks, and for ``row_tokens`` tokens in all of them (None: for as many
    as these blocks have at first).

    Reads are of whole storage blocks of ``alignment_bytes``, a power of two; so are writes, where less is asked for.
    ``page_buffers`` clusters of each row have a buffer in memory for a page of ``page_bytes`` (None: a storage block)
    that is written when it is full: clusters updated again within ``hot_steps`` tokens (DynaKV 5.2). ValueError
    for a size that is no power of two.
    """

    # What is stored is read and written elsewhere as clusters grow.
    moves: ClassVar[bool] = False

    layers: int
    sequences: int
    heads: int = 1
    blocks: int
    first_blocks: int
    block_tokens: int
    token_bytes: int
    more: int = 0
    row_tokens: int | None = None
    alignment_bytes: int = 512
    page_bytes: int | None = None
    page_buffers: int = 0
    hot_steps: int = 32

    def __post_init__(self) -> None:
        for what, n_bytes in (("block size", self.alignment_bytes), ("page_bytes", self.page_bytes)):
            if n_bytes is not None and (n_bytes < 1 or n_bytes & (n_bytes - 1)):
                raise ValueError(f"{what} of {n_bytes} B is no power of two; 4096 or 16384 would do")
        if self.page_buffers < 0 or self.hot_steps < 1:
            what = f"{self.page_buffers} and {self.hot_steps}"
            raise ValueError(f"page_buffers is 0 or more and hot_steps 1 or more, got {what}")

    @property
    def rows(self) -> int:
        """Rows of one layer: sequence by sequence, head by head."""
        return self.sequences * self.heads

    @property
    def all_rows(self) -> int:
        """Rows of all layers, layer by layer."""
        return self.layers * self.rows

    @property
    def page(self) -> int:
        """Bytes of what is written at once."""
        return self.page_bytes or self.alignment_bytes

    @property
    def most_row_tokens(self) -> int:
        if self.row_tokens is not None:
            return self.row_tokens
        return self.blocks * (self.block_tokens + bool(self.more))

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.token_bytes

    @property
    def stride_bytes(self) -> int:
        """Returns what a block as there are at first takes of the file, in whole storage blocks."""
        return up((self.block_tokens + bool(self.more)) * self.token_bytes, self.alignment_bytes)

    @property
    def buffer_bytes(self) -> int:
        """Page buffers of all layers and rows, in memory."""
        return self.all_rows * self.page_buffers * self.page

    @property
    @abstractmethod
    def file_bytes(self) -> int: ...

    @abstractmethod
    def start(self) -> "PlacedClusters":
        """The blocks of a run, to be placed layer by layer as it finds them (``filled``)."""


class CountedClusters(ABC):
    """Blocks of a run, numbered from 0 in every row of a layer, and the tokens in each. Layers, rows and blocks are
    numbers or arrays of them, one place each."""

    def __init__(self, like: ClusterLayout) -> None:
        self.like = like
        self.counted = LayoutCounts()
        # By row of all layers: blocks, and tokens in each.
        self._blocks = np.full(like.all_rows, like.first_blocks)
        self._tokens = np.zeros((like.all_rows, like.blocks), np.int64)
        # False while tokens are skipped.
        self._written = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, rows of each, and blocks that a row has room for."""
        return self.like.layers, self.like.rows, self.like.blocks

    @property
    def room(self) -> int:
        """Blocks that a row has room for."""
        return self.like.blocks

    def blocks(self, layer: int, row: int) -> int:
        return int(self._blocks[self._row(layer, row)])

    def counts(self, layers: Any, rows: Any) -> np.ndarray:
        """Returns how many blocks rows have."""
        return np.asarray(self._blocks[self._row(layers, rows)])

    @property
    def all_tokens(self) -> np.ndarray:
        """int64[layers, rows, blocks]: tokens in every block; 0 where there is none."""
        return self._tokens.reshape(self.shape).copy()

    def fewest(self, layer: int) -> int:
        """Blocks of the row that has the fewest."""
        return int(self._of_layer(self._blocks, layer).min())

    def most(self, layer: int) -> int:
        """Blocks of the row that has the most."""
        return int(self._of_layer(self._blocks, layer).max())

    def full(self, layer: int, row: int) -> bool:
        """A row has as many blocks as it has room for."""
        return self.blocks(layer, row) == self.like.blocks

    def tokens(self, layer: int, row: int, block: int) -> int:
        return int(self._tokens[self._row(layer, row), block])

    def tokens_of(self, layers: Any, rows: Any, blocks: Any) -> np.ndarray:
        """Tokens in each block; 0 where there is none."""
        return np.asarray(self._tokens[self._row(layers, rows), blocks])

    def fits(self, layers: Any, rows: Any, blocks: Any, tokens: int = 1) -> Any:
        """Returns bool: whether each block has room for `tokens` more where it lies, so that nothing has to be
        moved."""
        rows, blocks = np.asarray(self._row(layers, rows)), np.asarray(blocks)
        return self._fits(rows, blocks, tokens) if rows.ndim else bool(self._fits(rows[None], blocks[None], tokens)[0])

    @property
    def entry_bytes(self) -> int:
        """Returns the bytes of all entries, in page buffers too."""
        return int(self._tokens.sum()) * self.like.token_bytes

    @property
    @abstractmethod
    def taken_bytes(self) -> int:
        """Returns what the blocks take of the file, with room to grow and what they have left."""

    @property
    def space_overhead(self) -> float:
        """Returns what the blocks take over their entries' bytes, less one."""
        return self.taken_bytes / max(1, self.entry_bytes) - 1

    def count_anew(self) -> None:
        self.counted = LayoutCounts()

    @contextmanager
    def ahead(self, kinds: int) -> Iterator[None]:
        """Lets tokens be skipped: inside, only blocks of the first `kinds` layers change, and nothing is written, so
        there are no pieces and no counts. At the end every other layer gets what the first layer like it has, in turn,
        at places of its own."""
        layers, rows, _ = self.shape
        first = (np.arange(layers)[:, None] % kinds * rows + np.arange(rows)).ravel()
        self._written = False
        self._set_out()
        try:
            yield
            self._follow(first)
        finally:
            self._written = True
        if not type(self).__module__.startswith("kvferry."):
            # A plugin's layout may keep arrays by row that no `_follow` copies.
            for of_rows in vars(self).values():
                if isinstance(of_rows, np.ndarray) and of_rows.shape[:1] == first.shape:
                    of_rows[:] = of_rows[first]
        self.count_anew()

    def _set_out(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Prepares for changes of the first layers alone."""

    def _follow(self, first: np.ndarray) -> None:
        """Gives every row what the `first` row that is like it (int[all rows]) has come to."""
        for of_rows in (self._blocks, self._tokens):
            of_rows[:] = of_rows[first]

    @abstractmethod
    def _fits(self, rows: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray: ...

    def _row(self, layer: Any, row: Any) -> Any:
        return (np.asarray(layer) if isinstance(layer, Sequence) else layer) * self.like.rows + row

    def _of_layer(self, of_rows: np.ndarray, layer: int) -> np.ndarray:
        return of_rows[layer * self.like.rows : (layer + 1) * self.like.rows]

    def _number(self, row: int) -> int:
        new = int(self._blocks[row])
        if new == self.like.blocks:
            raise InputError(f"policies.layout: a row has room for {new} blocks, and has them; a larger room would do")
        self._blocks[row] += 1
        return new

    def _counted(self, written: Pieces) -> Pieces:
        if not self._written:
            return written
        page = self.like.page
        ends = written.offsets + written.lengths
        self.counted.written_bytes += int((up(ends, page) - (written.offsets & -page)).sum())
        self.counted.written_bytes += int(up(written.moves.lengths, page).sum())
        self.counted.moved_bytes += int(written.moves.lengths.sum())
        return written


class PlacedClusters(CountedClusters):
    """Blocks of a run with their places in the file. Places of one call are of different rows. What appends, splits and
    opens says what becomes of the file: Pieces, which a caller writes in order."""

    # --- where it lies -------------------------------------------------------------------------------------------

    def arranged(
        self, layer: int, tokens: np.ndarray, labels: np.ndarray | None = None, retrieved: np.ndarray | None = None
    ) -> None:
        """The same, by the block of each token, int[rows, tokens], and what the last queries wanted, int[rows, queries,
        k] (DynaKV 5.1); None: unknown."""
        order = None if retrieved is None else orders(retrieved, tokens.shape[1])
        members = None if labels is None else np.argsort(labels, axis=1, kind="stable")
        self.filled(layer, tokens, order, members)

    def filled(
        self, layer: int, tokens: np.ndarray, order: np.ndarray | None = None, members: np.ndarray | None = None
    ) -> None:
        """Give a layer's first blocks their places, once, before anything of it is written.

        `tokens` int[rows, blocks] in each, 0 where there is none, behind the existing ones. `order` int[rows, blocks]:
        the block that comes next in the file (None: by their numbers). `members` int[rows, tokens of the row]: which
        tokens they are, block by block, ascending in each (None: unknown; a layout that keeps tokens where they came
        deals them in turn). InputError without room.
        """
        flat = layer * self.like.rows + np.arange(self.like.rows)
        if tokens.shape[1] > self.like.blocks:
            what = f"a row has room for {self.like.blocks} blocks, {tokens.shape[1]} are wanted"
            raise InputError(f"policies.layout: {what}; a larger room would do")
        self._tokens[flat] = 0
        self._tokens[flat, : tokens.shape[1]] = tokens
        self._blocks[flat] = (tokens > 0).sum(axis=1)
        if order is None:
            order = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        self._place(flat, order, members)

    def refilled(self, layer: int, tokens: np.ndarray) -> Pieces:
        """Makes blocks of `tokens` int[rows, blocks] of all tokens of a layer, which are in memory; others take their
        places. InputError without room, and for a layout that is not made for it."""
        flat = layer * self.like.rows + np.arange(self.like.rows)
        before = int(self._tokens[flat].sum())
        self._empty(flat)
        self.filled(layer, tokens)
        self.counted.moved_bytes += before * self.like.token_bytes
        self.counted.new_bytes += (int(tokens.sum()) - before) * self.like.token_bytes
        return self._counted(self.whole(layer))

    def _empty(self, rows: np.ndarray) -> None:
        """Give up the places of all blocks of these rows."""
        raise InputError("policies.layout: clusters that are all made again take cluster-pools")

    @abstractmethod
    def _place(self, rows: np.ndarray, order: np.ndarray, members: np.ndarray | None) -> None:
        """The first places of a layer's blocks, whose tokens are counted; `rows` of all layers."""

    def reads(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Reads:
        """Returns how (row, block)s of a layer are read; what is in page buffers is not."""
        return self.reads_together([(np.array([layer]), rows, blocks)])[0][0]

    @abstractmethod
    def reads_together(self, wanted: Sequence[Wanted]) -> list[list[Reads]]:
        """Returns how the same (row, block)s of several layers are read, whose blocks have the same tokens; of several
        lists of layers, each with its own (row, block)s."""

    @abstractmethod
    def whole(self, layer: int) -> Pieces:
        """All that a layer has in the file, by its places there."""

    def stretches(self, layer: int, blocks: int) -> Ranges:
        """Returns the first `blocks` of every row of a layer, as far as there are, by their places in the file."""
        return self.whole(layer).ranges

    # --- what happens to it --------------------------------------------------------------------------------------

    @abstractmethod
    def grow(self, layers: Any, rows: np.ndarray, blocks: np.ndarray, tokens: int = 1, here: Any = True) -> Pieces:
        """Adds `tokens` to each of these blocks, of different rows. Where there is no room, entries move: a block that
        is ``here``, in memory, is written again, others are read first. InputError without room."""

    def append(self, layer: int, row: int, block: int, tokens: int = 1, here: bool = True) -> Pieces:
        """The same for one block."""
        return self.grow(layer, np.array([row]), np.array([block]), tokens, here)

    def alone(self, layer: int, row: int) -> Sequence[int]:
        """Blocks of a row that another one could lie beside, so that both are read as one."""
        return ()

    def partners(self, layers: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """Returns int64[n, blocks]: the block that each of these rows' blocks is read with as one, -1 for none; None:
        there are no pairs."""
        return None

    def pair(self, layer: int, row: int, block: int, other: int) -> Pieces:
        """Gives two blocks, which are in memory, places beside each other. InputError without room, and for a layout
        without pairs."""
        raise InputError("policies.layout: pairs of clusters take `layout: dual-head`")

    def split(
        self,
        layer: int,
        row: int,
        block: int,
        stay: int,
        leave: int,
        leaves: np.ndarray | None = None,
        beside: Collection[int] = (),
    ) -> tuple[int, Pieces]:
        """Keeps `stay` of a block's tokens, the newest included, and gives `leave` to a new block: returns its number.
        `leaves` bool[stay + leave]: which, in the order in which they came; None: unknown (a layout that keeps tokens
        where they came takes the last ones). `beside`: blocks that are alone and that the new one may come to lie
        beside. Both parts keep that order. All are in memory, and are written where they are not already. ValueError
        when that leaves nothing in one part, or loses tokens; InputError without room."""
        flat = self._row(layer, row)
        before = int(self._tokens[flat, block])
        if not (stay > 0 < leave and stay + leave >= before):
            raise ValueError(f"a block of {before} tokens cannot be split into {stay} and {leave}")
        if leaves is not None and (len(leaves) != stay + leave or np.count_nonzero(leaves) != leave):
            raise ValueError(f"{leave} of {stay + leave} tokens leave, {np.count_nonzero(leaves)} are said to")
        new = self._number(flat)
        self.counted.new_bytes += (stay + leave - before) * self.like.token_bytes
        return new, self._counted(self._split(flat, block, new, stay, leave, leaves, beside))

    @abstractmethod
    def _split(
        self, row: int, block: int, new: int, stay: int, leave: int, leaves: np.ndarray | None, beside: Collection[int]
    ) -> Pieces:
        """The same, for a row of all layers and a number for the new block."""

    def open(self, layer: int, row: int, tokens: int) -> tuple[int, Pieces]:
        """Opens a block of `tokens`; returns its number. InputError when there is no room."""
        flat = self._row(layer, row)
        new = self._number(flat)
        self.counted.new_bytes += tokens * self.like.token_bytes
        return new, self._counted(self._open(flat, new, tokens))

    @abstractmethod
    def _open(self, row: int, new: int, tokens: int) -> Pieces:
        """The same, for a row of all layers and the new block's number."""

    def open_together(
        self, layer: int, row: int, tokens: Sequence[int], labels: np.ndarray | None = None
    ) -> list[Pieces]:
        """Opens blocks of `tokens` each; `labels` say which of them the tokens are in, in the order in which these
        came (None: unknown)."""
        return [self.open(layer, row, n)[1] for n in tokens]

    @abstractmethod
    def check(self) -> None:
        """AssertionError when entries overlap in the file, or lie outside of it."""


AnyLayout = Layout | ClusterLayout


def up(n_bytes: Any, to: int) -> Any:
    """To the next multiple, of a number or an array."""
    return -(-n_bytes // to) * to
