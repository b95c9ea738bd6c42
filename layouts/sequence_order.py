"""A layout in which entries lie in the order of the tokens, whatever cluster they are in (DynaKV 5.1)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout, PlacedClusters, up
from kvferry.layouts.layout import Wanted
from kvferry.layouts.pieces import Pieces, Reads, gathered
from kvferry.layouts.ranks import ranks
from kvferry.specs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SequenceLayout(ClusterLayout):
    """A row has room for its tokens alone. Clusters have no place of their own, so no pages are buffered for them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_buffers:
            raise ValueError(f"page_buffers: {self.page_buffers}: clusters have no pages of their own here; 0 would do")

    @property
    def row_bytes(self) -> int:
        return int(up(self.most_row_tokens * self.token_bytes, self.alignment_bytes))

    @property
    def file_bytes(self) -> int:
        return self.all_rows * self.row_bytes

    def start(self) -> "SequenceOrder":
        return SequenceOrder(self)


class SequenceOrder(PlacedClusters):
    """A new token is written behind all others of its row. A split says which tokens are whose, and writes nothing."""

    like: SequenceLayout

    def __init__(self, like: SequenceLayout) -> None:
        super().__init__(like)
        # The block of each token of a row; -1: it has not come.
        self._owner = np.full((like.all_rows, like.most_row_tokens), -1, np.int32)
        self._lengths = np.zeros(like.all_rows, np.int64)

    @property
    def taken_bytes(self) -> int:
        return int(up(self._lengths * self.like.token_bytes, self.like.alignment_bytes).sum())

    def reads_together(self, wanted: Sequence[Wanted]) -> list[list[Reads]]:
        return [self._reads_alike(*one) for one in wanted]

    def _reads_alike(self, layers: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> list[Reads]:
        like, layer = self.like, int(layers[0])
        owner = self._of_layer(self._owner, layer)
        # The last column is that of tokens that have not come.
        wanted = np.zeros((like.rows, like.blocks + 1), bool)
        wanted[rows, blocks] = True
        found = np.flatnonzero(np.take_along_axis(wanted, owner, axis=1))
        offsets = self._offsets(layer * like.rows + found // owner.shape[1], found % owner.shape[1])
        ones = np.ones(len(offsets), np.int64)
        begins, lengths, entries = gathered(offsets, ones, like.token_bytes, like.alignment_bytes)
        # As it is now: a machine may ask later.
        owner = owner.copy()
        layer_bytes = like.rows * like.row_bytes
        return [
            Reads(
                begins + (one - layer) * layer_bytes,
                lengths,
                entries,
                partial(self._pieces_of, one, owner, rows, blocks),
            )
            for one in layers.tolist()
        ]

    def whole(self, layer: int) -> Pieces:
        return self._all(layer, self._of_layer(self._owner, layer))

    def grow(self, layers: Any, rows: np.ndarray, blocks: np.ndarray, tokens: int = 1, here: Any = True) -> Pieces:
        flat = self._row(layers, rows)
        self.counted.new_bytes += tokens * len(flat) * self.like.token_bytes
        nth = np.tile(np.arange(tokens), len(flat))
        return self._counted(self._taken_in(np.repeat(flat, tokens), np.repeat(blocks, tokens), nth))

    def _open(self, row: int, new: int, tokens: int) -> Pieces:
        return self._taken_in(np.full(tokens, row), np.full(tokens, new), np.arange(tokens))

    def open_together(
        self, layer: int, row: int, tokens: Sequence[int], labels: np.ndarray | None = None
    ) -> list[Pieces]:
        if labels is None:
            return super().open_together(layer, row, tokens)
        flat = self._row(layer, row)
        new = np.array([self._number(flat) for _ in tokens])
        self.counted.new_bytes += len(labels) * self.like.token_bytes
        rows = np.full(len(labels), flat)
        return [self._counted(self._taken_in(rows, new[labels], ranks(labels), np.arange(len(labels))))]

    def _split(
        self, row: int, block: int, new: int, stay: int, leave: int, leaves: np.ndarray | None, beside: Collection[int]
    ) -> Pieces:
        if leaves is None:
            leaves = np.arange(stay + leave) >= stay
        before = int(self._tokens[row, block])
        more = np.arange(stay + leave - before)
        rows = np.full(len(more), row)
        self._taken_in(rows, np.full(len(more), block), more)
        members = np.flatnonzero(self._owner[row] == block)
        self._owner[row, members[leaves]] = new
        self._tokens[row, block], self._tokens[row, new] = stay, leave
        # New ones are written as what they have become.
        parts = np.where(leaves[before:], new, block)
        return self._single(rows, parts, ranks(leaves)[before:], members[before:])

    def _follow(self, first: np.ndarray) -> None:
        super()._follow(first)
        for of_rows in (self._owner, self._lengths):
            of_rows[:] = of_rows[first]

    def check(self) -> None:
        for row, owner in enumerate(self._owner):
            came = owner[: self._lengths[row]]
            assert (came >= 0).all() and (owner[self._lengths[row] :] < 0).all()
            assert (np.bincount(came, minlength=self.like.blocks) == self._tokens[row]).all()

    def _place(self, rows: np.ndarray, order: np.ndarray, members: np.ndarray | None) -> None:
        for n, row in enumerate(rows.tolist()):
            sizes = self._tokens[row]
            owners = np.repeat(np.arange(len(sizes)), sizes)
            self._check_room(len(owners))
            self._owner[row] = -1
            if members is None:
                # Dealt in turn: one of each cluster, then the next of each that has more.
                self._owner[row, : len(owners)] = owners[np.argsort(ranks(owners), kind="stable")]
            else:
                self._owner[row, members[n]] = owners
            self._lengths[row] = len(owners)

    def _fits(self, rows: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
        return np.asarray(self._lengths[rows] + tokens <= self.like.most_row_tokens)

    def _taken_in(
        self, rows: np.ndarray, blocks: np.ndarray, nth: np.ndarray, in_row: np.ndarray | None = None
    ) -> Pieces:
        """Places new tokens, each the nth that its block gets, and that its row gets (None: the same)."""
        tokens = self._lengths[rows] + (nth if in_row is None else in_row)
        self._check_room(int(tokens.max(initial=-1)) + 1)
        firsts = self._tokens[rows, blocks] + nth
        self._owner[rows, tokens] = blocks
        np.add.at(self._tokens, (rows, blocks), 1)
        np.add.at(self._lengths, rows, 1)
        return self._single(rows, blocks, firsts, tokens)

    def _check_room(self, tokens: int) -> None:
        if tokens > self.like.most_row_tokens:
            what = f"a row has room for {self.like.most_row_tokens:,} tokens, {tokens:,} are wanted"
            raise InputError(f"policies.layout: {what}; a longer workload.output makes it longer")

    def _offsets(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(rows * self.like.row_bytes + tokens * self.like.token_bytes)

    def _single(self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray) -> Pieces:
        """A piece for each of a row's tokens; none while nothing is written."""
        if not self._written:
            return Pieces.none(self.like.token_bytes)
        layers, of_layer = np.divmod(rows, self.like.rows)
        ones, down = np.ones(len(rows), np.int64), np.zeros(len(rows), bool)
        offsets = self._offsets(rows, tokens)
        return Pieces(layers, of_layer, blocks, firsts, ones, offsets, down, self.like.token_bytes)

    def _all(self, layer: int, owner: np.ndarray) -> Pieces:
        """The pieces of a layer, given the block of each of its tokens, int[rows, tokens]."""
        rows, tokens = np.nonzero(owner >= 0)
        blocks = owner[rows, tokens].astype(np.int64)
        return self._single(layer * self.like.rows + rows, blocks, ranks(rows * self.like.blocks + blocks), tokens)

    def _pieces_of(self, layer: int, owner: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> Pieces:
        """Returns pieces of blocks in the order given, each by its tokens."""
        whole = self._all(layer, owner)
        nth = np.full((self.like.rows, self.like.blocks), -1)
        nth[rows, blocks] = np.arange(len(rows))
        asked = nth[whole.rows, whole.blocks]
        kept = np.flatnonzero(asked >= 0)
        return whole.taken(kept[np.lexsort((whole.firsts[kept], asked[kept]))])
