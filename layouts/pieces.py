"""Stretches of KV entries in the storage file: what of a cluster lies where, and how a step's reads become commands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

# Offset and length of byte ranges, int64 arrays.
Ranges = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Bytes that are read at one place of the file and written at another, layer by layer: int64[n]. All of them are
    read before one is written."""

    layers: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def of(self, layers: np.ndarray) -> "Moves":
        kept = np.isin(self.layers, layers)
        return Moves(self.layers[kept], self.sources[kept], self.targets[kept], self.lengths[kept])

    @staticmethod
    def together(parts: "Sequence[Moves]") -> "Moves":
        columns = ("layers", "sources", "targets", "lengths")
        return Moves(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    @staticmethod
    @cache
    def none() -> "Moves":
        nothing = np.empty(0, np.int64)
        return Moves(nothing, nothing, nothing, nothing)


_NOTHING = Moves.none()


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Entries ``firsts`` up to ``firsts + tokens`` of KV blocks, each stretch at a byte offset of the file: int64[n].

    Entries are counted in the order in which they came to their block. Where ``down`` is set they lie from the end of
    the stretch to its beginning (DynaKV 5.2: one cluster of a pair grows downwards). Pieces that are to be written come
    after ``moves`` within the file.
    """

    layers: np.ndarray
    rows: np.ndarray
    blocks: np.ndarray
    firsts: np.ndarray
    tokens: np.ndarray
    offsets: np.ndarray
    down: np.ndarray
    token_bytes: int
    moves: Moves = _NOTHING

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def lengths(self) -> np.ndarray:
        return self.tokens * self.token_bytes

    @property
    def n_bytes(self) -> int:
        return int(self.tokens.sum()) * self.token_bytes

    def taken(self, which: np.ndarray | slice) -> "Pieces":
        """Returns some of them, by index or flag, without moves."""
        return Pieces(
            self.layers[which],
            self.rows[which],
            self.blocks[which],
            self.firsts[which],
            self.tokens[which],
            self.offsets[which],
            self.down[which],
            self.token_bytes,
        )

    def after(self, moves: Moves) -> "Pieces":
        """Returns the same, to be written after these moves."""
        return replace(self, moves=moves)

    def of(self, layers: np.ndarray) -> "Pieces":
        """Returns the pieces of some layers, in that order and by their places in the file: as they are written."""
        nth = np.full(max(int(self.layers.max(initial=0)), int(layers.max(initial=0))) + 1, len(layers))
        nth[layers] = np.arange(len(layers))
        kept = np.flatnonzero(nth[self.layers] < len(layers))
        return self.taken(kept[np.lexsort((self.offsets[kept], nth[self.layers[kept]]))])

    @property
    def ranges(self) -> Ranges:
        """Returns the byte ranges of all, adjacent ones as one; the bytes of the pieces, one behind the other, fill
        them."""
        offsets, lengths = self.offsets, self.lengths
        if len(offsets) < 2:
            return offsets, lengths
        first = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1] + lengths[:-1]]))
        return offsets[first], np.add.reduceat(lengths, first)

    @staticmethod
    def together(parts: "Sequence[Pieces]") -> "Pieces":
        """Joins pieces of one token size, one after the other; none of them moves what another one has written."""
        if len(parts) == 1:
            return parts[0]
        columns = ("layers", "rows", "blocks", "firsts", "tokens", "offsets", "down")
        whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
        moves = [part.moves for part in parts if len(part.moves)]
        return Pieces(**whole, token_bytes=parts[0].token_bytes, moves=Moves.together(moves) if moves else _NOTHING)

    @staticmethod
    def in_turns(parts: "Sequence[Pieces]") -> "list[Pieces]":
        """Joins pieces into as few as have to be written one after the other: where some move, those of a layer."""
        some = [one for one in parts if len(one) or len(one.moves)]
        if not any(len(one.moves) for one in some):
            return [Pieces.together(some)] if some else []
        turns: list[list[Pieces]] = []
        seen: set[int] = set()
        for one in some:
            layers = {*one.layers.tolist(), *one.moves.layers.tolist()}
            if not turns or seen & layers:
                turns.append([])
                seen = set()
            turns[-1].append(one)
            seen |= layers
        return [Pieces.together(turn) for turn in turns]

    @staticmethod
    @cache
    def none(token_bytes: int) -> "Pieces":
        nothing = np.empty(0, np.int64)
        return Pieces(nothing, nothing, nothing, nothing, nothing, nothing, np.empty(0, bool), token_bytes)


class Reads:
    """Holds what one layer reads in a step: commands by offset and length, int64[n], in the order in which they are
    given.

    ``entries`` int64[accesses]: how many entries that are wanted lie in one piece, stretch by stretch (None: not
    counted); several may be brought by one command. ``pieces`` says where in the commands' bytes the entries of each
    block are, for a machine that really reads them (None: each command is a block).
    """

    def __init__(
        self,
        offsets: np.ndarray,
        lengths: np.ndarray,
        entries: np.ndarray | None = None,
        pieces: Callable[[], Pieces] | None = None,
    ) -> None:
        """`pieces` may be called long after clusters have changed."""
        self.offsets, self.lengths, self.entries = offsets, lengths, entries
        self._pieces = pieces

    @property
    def ranges(self) -> Ranges:
        return self.offsets, self.lengths

    @cached_property
    def pieces(self) -> Pieces | None:
        """Block by block as they were asked for, each with its entries in their order."""
        return None if self._pieces is None else self._pieces()

    @cached_property
    def ats(self) -> np.ndarray:
        """int64[pieces]: where each piece begins in the bytes of all commands, one behind the other."""
        assert self.pieces is not None
        before = np.cumsum(self.lengths) - self.lengths
        command = np.searchsorted(self.offsets, self.pieces.offsets, side="right") - 1
        ats: np.ndarray = before[command] + self.pieces.offsets - self.offsets[command]
        return ats


# Offsets and lengths of commands, and the entries of every contiguous access.
Gathered = tuple[np.ndarray, np.ndarray, np.ndarray]


def gathered(
    offsets: np.ndarray, tokens: np.ndarray, token_bytes: int, alignment_bytes: int, pools: np.ndarray | None = None
) -> Gathered:
    """Returns commands that read stretches of entries without overlap: their offsets and lengths, and the entries of
    every contiguous access.

    A command covers whole storage blocks. Stretches that lie against each other, or share a storage block, are read as
    one; so are two of one of `pools` (int64, like the stretches), through what lies between them. A contiguous access
    is of stretches that lie against each other, or of such a pair, whatever storage blocks they share with others.
    """
    return gathered_apart(offsets, tokens, [len(offsets)], token_bytes, alignment_bytes, pools)[0]


def gathered_apart(
    offsets: np.ndarray,
    tokens: np.ndarray,
    counts: Sequence[int],
    token_bytes: int,
    alignment_bytes: int,
    pools: np.ndarray | None = None,
) -> list[Gathered]:
    """The same of several readers, each of so many of the stretches, one reader's behind the other's, and with commands
    of its own."""
    if not len(offsets):
        nothing = np.empty(0, np.int64)
        return [(nothing, nothing, nothing)] * len(counts)
    ends = np.cumsum(counts)
    # Reader by reader, by places in the file.
    by_reader = np.repeat(np.arange(len(counts)) * (int(offsets.max()) + 1), counts) if len(counts) > 1 else 0
    order = (offsets + by_reader).argsort()
    offsets, tokens = offsets[order], tokens[order]
    begins = offsets & -alignment_bytes
    stops = (offsets + tokens * token_bytes + alignment_bytes - 1) & -alignment_bytes
    # Whether each begins a command, or an access.
    apart, broken = np.ones((2, len(offsets)), bool)
    apart[1:] = begins[1:] > stops[:-1]
    broken[1:] = offsets[1:] != offsets[:-1] + tokens[:-1] * token_bytes
    if pools is not None:
        pools = pools[order]
        others = pools[1:] != pools[:-1]
        apart[1:] &= others
        broken[1:] &= others
    between = ends[ends < len(offsets)]
    apart[between] = broken[between] = True
    first, accesses = apart.nonzero()[0], broken.nonzero()[0]
    last = np.empty_like(first)
    last[:-1], last[-1] = first[1:] - 1, len(offsets) - 1
    found = begins[first], stops[last] - begins[first], np.add.reduceat(tokens, accesses)
    if len(counts) == 1:
        return [found]
    commands, entries = (_stretches(of.searchsorted(ends).tolist()) for of in (first, accesses))
    at, lengths, each = found
    return [(at[some], lengths[some], each[which]) for some, which in zip(commands, entries, strict=True)]


def _stretches(ends: list[int]) -> list[slice]:
    """Returns stretches that end there, one behind the other."""
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
