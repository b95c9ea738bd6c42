"""A layout of blocks that grow, split and move: each has a pool of its own in the file (DynaKV 5.2).

Left out: two blocks that share a pool, growing towards each other.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.policies.decode.layout import Layout, Places, Ranges
from kvferry.specs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PoolLayout:
    """In each row of a layer ``first_blocks`` blocks of ``block_tokens`` at first, the first ``more`` of them with one
    token more; there is room for ``blocks`` blocks.

    A pool has room for ``spare`` times the tokens that it is made for, and begins at a multiple of ``alignment_bytes``.
    The file has ``file_spare`` times the room of the pools that all blocks would take at first.
    """

    layers: int
    sequences: int
    heads: int = 1
    blocks: int
    first_blocks: int
    block_tokens: int
    token_bytes: int
    more: int = 0
    alignment_bytes: int = 512
    spare: int = 2
    file_spare: int = 2

    @property
    def rows(self) -> int:
        """Rows of one layer: sequence by sequence, head by head."""
        return self.sequences * self.heads

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.token_bytes

    @property
    def stride_bytes(self) -> int:
        """Bytes of a pool that is made for one of the first blocks."""
        most_tokens = self.block_tokens + bool(self.more)
        return _up(self.spare * most_tokens * self.token_bytes, self.alignment_bytes)

    @property
    def first_tokens(self) -> np.ndarray:
        """Tokens of every block at first."""
        return even_sizes(self.block_tokens * self.first_blocks + self.more, self.first_blocks)

    @property
    def file_bytes(self) -> int:
        return self.file_spare * self.layers * self.rows * self.blocks * self.stride_bytes

    def start(self) -> "Pools":
        """The blocks of a run, as they are at first unless they are filled otherwise."""
        return Pools(self)


class Pools:
    """Blocks of a run, numbered from 0 in every row of a layer. What appends, splits and moves a block returns the byte
    ranges that have to be written; a block that has moved leaves its pool to others."""

    def __init__(self, layout: PoolLayout) -> None:
        self._like = layout
        shape = layout.layers, layout.rows, layout.first_blocks
        self._blocks = np.full(shape[:2], layout.first_blocks)
        later = ((0, 0), (0, 0), (0, layout.blocks - layout.first_blocks))
        pools = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
        self._tokens = np.pad(np.broadcast_to(layout.first_tokens, shape), later)
        self._offsets = np.pad(pools * layout.stride_bytes, later)
        self._pool_bytes = np.pad(np.full(shape, layout.stride_bytes), later)
        self._end = pools.size * layout.stride_bytes
        # Offsets of pools that nothing lies in, by their bytes.
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def blocks(self, layer: int, row: int) -> int:
        return int(self._blocks[layer, row])

    @property
    def all_tokens(self) -> np.ndarray:
        """int64[layers, rows, blocks]: tokens in every block; 0 where there is none."""
        return self._tokens.copy()

    def fewest(self, layer: int) -> int:
        """Blocks of the row that has the fewest."""
        return int(self._blocks[layer].min())

    def most(self, layer: int) -> int:
        """Blocks of the row that has the most."""
        return int(self._blocks[layer].max())

    def full(self, layer: int, row: int) -> bool:
        """A row has as many blocks as it has room for."""
        return self.blocks(layer, row) == self._like.blocks

    def tokens(self, layer: int, row: int, block: int) -> int:
        return int(self._tokens[layer, row, block])

    def filled(self, layer: int, tokens: np.ndarray) -> None:
        """The context's blocks of a layer have so many tokens, int[rows, first blocks]: before anything is written."""
        like = self._like
        assert tokens.shape == self._tokens[layer, :, : like.first_blocks].shape and tokens.min() > 0, tokens
        sizes = np.maximum(_up(like.spare * tokens * like.token_bytes, like.alignment_bytes), like.alignment_bytes)
        place = layer, slice(None), slice(like.first_blocks)
        # Pools of layers that are not filled yet lie behind; the last layer's end is the file's.
        begin = 0 if layer == 0 else int((self._offsets[layer - 1] + self._pool_bytes[layer - 1]).max())
        ends = begin + np.cumsum(sizes).reshape(sizes.shape)
        self._tokens[place], self._pool_bytes[place], self._offsets[place] = tokens, sizes, ends - sizes
        if layer == like.layers - 1:
            self._end = int(ends[-1, -1])
            if self._end > like.file_bytes:
                raise InputError(f"policies.layout: the file of {like.file_bytes:,} B has no room for {self._end:,} B")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, rows, and blocks that a row has room for."""
        return self._tokens.shape

    @property
    def room(self) -> int:
        """Blocks that a row has room for."""
        return self._like.blocks

    def counts(self, layers: Places, rows: Places) -> np.ndarray:
        """How many blocks rows have."""
        return np.asarray(self._blocks[layers, rows])

    def fits(self, layers: Places, rows: Places, blocks: Places, tokens: int = 1) -> np.ndarray:
        """bool: there is room for so many tokens more where each block lies."""
        place = layers, rows, blocks
        return np.asarray((self._tokens[place] + tokens) * self._like.token_bytes <= self._pool_bytes[place])

    def tokens_of(self, layers: Places, rows: Places, blocks: Places) -> np.ndarray:
        """Tokens in each (row, block) of a layer; 0 where there is none."""
        return np.asarray(self._tokens[layers, rows, blocks])

    def ranges(self, layer: int, rows: np.ndarray, blocks: np.ndarray) -> Ranges:
        """A byte range for each (row, block) of a layer, in the order given."""
        n_bytes = self._tokens[layer, rows, blocks] * self._like.token_bytes
        return self._offsets[layer, rows, blocks], _up(n_bytes, self._like.alignment_bytes)

    def stretches(self, layer: int, blocks: int) -> Ranges:
        """The first `blocks` of every row of a layer, those that it has."""
        rows, found = np.nonzero(np.arange(blocks) < self._blocks[layer][:, None])
        return self.ranges(layer, rows, found)

    def grow(self, layers: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> Ranges:
        """A token more in each of these blocks, of different rows: a range for each, in their order."""
        unit, place = self._like.alignment_bytes, (layers, rows, blocks)
        moving = ~self.fits(*place)
        before = self._tokens[place] * self._like.token_bytes
        self._tokens[place] += 1
        begins = before // unit * unit
        offsets = self._offsets[place] + begins
        lengths = _up(before + self._like.token_bytes, unit) - begins
        for n in np.flatnonzero(moving):
            where = int(layers[n]), int(rows[n]), int(blocks[n])
            self._tokens[where] -= 1
            (offsets[n],), (lengths[n],) = self.append(*where)
        return offsets, lengths

    def append(self, layer: int, row: int, block: int, tokens: int = 1) -> Ranges:
        """More tokens in a block: behind its others, or, where its pool is full, all of it in a larger one."""
        place = layer, row, block
        before = int(self._tokens[place]) * self._like.token_bytes
        self._tokens[place] += tokens
        after = before + tokens * self._like.token_bytes
        if after > self._pool_bytes[place]:
            self._free[int(self._pool_bytes[place])].append(int(self._offsets[place]))
            self._take_pool(place)
            before = 0
        # Writes are of whole storage blocks, the one in which the last ended among them.
        begin = before // self._like.alignment_bytes * self._like.alignment_bytes
        offsets = np.array([self._offsets[place] + begin])
        return offsets, np.array([_up(after, self._like.alignment_bytes) - begin])

    def split(self, layer: int, row: int, block: int, stay: int, leave: int) -> tuple[int, Ranges]:
        """So many of a block's tokens, and of those that came to it, stay, and others leave for a new one: its number.
        Both are written: the old one where it lies, or where it fits, the new one in a pool of its own. ValueError when
        that leaves nothing in one of them, InputError without room."""
        place = layer, row, block
        if not (stay > 0 < leave and stay + leave >= self._tokens[place]):
            raise ValueError(f"a block of {self._tokens[place]} tokens cannot be split into {stay} and {leave}")
        new, _ = self.open(layer, row, leave)
        self._tokens[place] = stay
        if stay * self._like.token_bytes > self._pool_bytes[place]:
            self._free[int(self._pool_bytes[place])].append(int(self._offsets[place]))
            self._take_pool(place)
        return new, self.ranges(layer, np.array([row, row]), np.array([block, new]))

    def open(self, layer: int, row: int, tokens: int) -> tuple[int, Ranges]:
        """A new block of so many tokens, in a pool of its own: its number. InputError when there is no room."""
        new = self.blocks(layer, row)
        if self.full(layer, row):
            raise InputError(f"policies.layout: a row has room for {new} blocks, and has them")
        self._blocks[layer, row] += 1
        self._tokens[layer, row, new] = tokens
        self._take_pool((layer, row, new))
        return new, self.ranges(layer, np.array([row]), np.array([new]))

    def check(self) -> None:
        """AssertionError when pools overlap, those that are free among them, or a block is larger than its pool."""
        there = np.arange(self._tokens.shape[2]) < self._blocks[..., None]
        begins, n_bytes = self._offsets[there], self._pool_bytes[there]
        assert (self._tokens[there] * self._like.token_bytes <= n_bytes).all()
        free = [(offset, size) for size, offsets in self._free.items() for offset in offsets]
        begins = np.concatenate([begins, [offset for offset, _ in free]])
        n_bytes = np.concatenate([n_bytes, [size for _, size in free]])
        order = np.argsort(begins)
        ends = begins[order] + n_bytes[order]
        assert (ends[:-1] == begins[order][1:]).all() and begins.min() == 0 and ends[-1] == self._end

    def _take_pool(self, place: tuple[int, int, int]) -> None:
        like = self._like
        needed = _up(like.spare * int(self._tokens[place]) * like.token_bytes, like.alignment_bytes)
        if self._free[needed]:
            self._offsets[place] = self._free[needed].pop()
        elif self._end + needed > like.file_bytes:
            what = f"the file of {like.file_bytes:,} B has no room for a pool of {needed:,} B"
            raise InputError(f"policies.layout: {what}")
        else:
            self._offsets[place], self._end = self._end, self._end + needed
        self._pool_bytes[place] = needed


def even_sizes(tokens: int, blocks: int) -> np.ndarray:
    """Tokens of each block, when they are dealt as evenly as can be; the first blocks have one more."""
    each, more = divmod(tokens, blocks)
    return each + (np.arange(blocks) < more)


AnyLayout = Layout | PoolLayout


def _up(n_bytes: Any, to: int) -> Any:
    """A number or an array rounded up to the next multiple."""
    return -(-n_bytes // to) * to
