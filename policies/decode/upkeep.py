"""Upkeeps: what a new token does to KV blocks and buffers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from kvferry.layouts.layout import Layout, Ranges
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Joined
from kvferry.policies.ledger import NEW_TOKENS, Holding


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """Holds what a step has shown: by layer, the blocks that were wanted (None: all)."""

    found: Sequence[Lookup | None]


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Says what new tokens lead to. ``written`` gives the byte ranges that some layers' KV is written to; None:
    ``changes`` say all that becomes of the file, in this order. ``complete``: the block of every row and layer that is
    full now, if it is one. ``changed``: by layer, blocks that may have copies in memory which are out of date
    now. Where blocks are clusters, ``joined`` says by layer what became of new keys that were in no split (None: they
    belong to no cluster yet), and ``made`` which blocks were made as a whole besides, (row, block)."""

    written: Callable[[np.ndarray], Ranges] | None = None
    complete: int | None = None
    changed: Sequence[BlockRows] = ()
    joined: Sequence[Sequence[Joined] | None] = ()
    made: Sequence[Sequence[tuple[int, int]]] = ()
    changes: Sequence[Pieces] = ()

    @property
    def pieces(self) -> Pieces | None:
        """Returns all that is written of clusters; None: nothing is."""
        return Pieces.together(self.changes) if self.changes else None


class Ahead(Protocol):
    """A modelled world's keys, which can go ahead of its time. Only the first ``kinds`` layers are told apart, and
    those behind are each like one of them, in turn."""

    kinds: int

    def go_on(self) -> None:
        """To the next token, without any time."""
        ...

    def watch(self, told: Callable[[int, int], None]) -> None:
        """`told` is called with how much of what is made of the prompts' keys is done, of how much, where it takes
        long."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """Knows what queries want."""

    def recall(self, tokens: float) -> tuple[float, float] | None:
        """Returns two means over rows: how much of the `tokens` entries that the query under way wants most was chosen
        or is in memory, and the share of all entries that was chosen. None: nothing is known of them."""
        ...


class Kept(Protocol):
    """A run's blocks and newest tokens; every sequence gains a token per step."""

    def stored(self, layer: int) -> int:
        """Returns the blocks that a row of this layer has by now, apart from its newest tokens: the longest, where rows
        differ."""
        ...

    def in_all_rows(self, layer: int) -> int:
        """Returns how many of them every row has."""
        ...

    def recent(self, layer: int) -> int:
        """Returns newest tokens in memory, which attention takes in besides blocks."""
        ...

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray | None:
        """Returns the tokens in each of these blocks; None: they are all full, and of one size."""
        ...

    def append(self, learned: Learned) -> Update | None:
        """One new token per sequence; None when nothing has to be written."""
        ...

    def skip(self, tokens: int, stored: int, keys: Any, wanted: Callable[[int], float]) -> None:
        """Adds `tokens` after `stored` ones, as if they had been decoded, without any time. `keys` go with them
        (an Ahead, KeysAhead where blocks are clusters; None: nothing is known of keys); `wanted` of a row's tokens are
        retrieved at a time."""
        ...


class Upkeep(ABC):
    """Base of all upkeeps: new tokens become KV blocks at once, and nothing stays in memory.

    ``clusters``: KV blocks are clusters, which new keys join. ``grows``: new tokens become KV blocks, or join them.
    ``beside_moves``: kinds of the stages that run while a layer's KV moves to the processor: what new keys are asked.
    ``after_attention``: kinds of the stages that a layer needs once it has attended.
    """

    clusters: ClassVar[bool] = False
    grows: ClassVar[bool] = True
    beside_moves: ClassVar[tuple[str, ...]] = ()
    after_attention: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:  # noqa: B027 - most have none
        """ValueError for parameters that cannot be."""

    def in_blocks(self, context: int, block_tokens: int, tokens: int) -> int:
        """Returns how many of a sequence's `tokens`, those of the context included, KV blocks hold: the others lie in
        memory beside them."""
        return tokens if self.grows else min(context, tokens) // block_tokens * block_tokens

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        """Returns what each sequence holds in memory for its newest tokens, in the group "kv"; `selected`: None where
        everything is read."""
        return ()

    def mean_recent(self, block_tokens: int, output: int) -> float:
        """Returns the newest tokens in memory, on average over the output."""
        return 0.0

    @abstractmethod
    def start(self, context: int, block_tokens: int, layout: Any) -> Kept:
        """Returns a run's; `layout` is what the layout's own ``start`` gave."""


def new_tokens(room: Room, tokens: int) -> tuple[Holding, ...]:
    """Returns the holding of these tokens of a sequence in every layer."""
    return (Holding.of(NEW_TOKENS, room.model.layers * tokens * room.model.kv_entry_bytes, "sequence"),)


@dataclass(frozen=True, kw_only=True)
class RollingGroups(Upkeep):
    """The newest tokens stay in a buffer in memory until they make a full block, which is written then (KVSwap 3.4.1).
    ``rolling``: attention takes them in meanwhile; without it, it sees the newest one alone."""

    # Tokens in the buffer have their places in the next block already.
    rolling: bool = True

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        # The buffers that everything is read into have room for all tokens.
        return () if selected is None else new_tokens(room, room.block_tokens)

    def mean_recent(self, block_tokens: int, output: int) -> float:
        return (block_tokens - 1) / 2 if self.rolling else 0.0

    def start(self, context: int, block_tokens: int, layout: Layout) -> Kept:
        return RollingBuffer(context, block_tokens, layout, attended=self.rolling)


class Newest:
    """Counts for a lock-step batch: full blocks, and new tokens, which stay in memory beside them. The context's own
    last, incomplete block is there from the start."""

    def __init__(self, context_tokens: int, block_tokens: int) -> None:
        self._blocks, self.tokens = divmod(context_tokens, block_tokens)

    def stored(self, layer: int) -> int:
        return self._blocks

    def in_all_rows(self, layer: int) -> int:
        return self._blocks

    def recent(self, layer: int) -> int:
        return self.tokens

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray | None:
        return None

    def append(self, learned: Learned) -> Update | None:
        self.tokens += 1
        return None

    def skip(self, tokens: int, stored: int, keys: Ahead | None, wanted: Callable[[int], float]) -> None:
        for _ in range(tokens):
            if keys is not None:
                keys.go_on()
            self.append(Learned(()))


class RollingBuffer(Newest):
    """The same, where a block that is full is written and leaves the buffer."""

    def __init__(self, context_tokens: int, block_tokens: int, layout: Layout, *, attended: bool = True) -> None:
        if block_tokens < 1:
            raise ValueError(f"a block has a token at least, got {block_tokens}")
        super().__init__(context_tokens, block_tokens)
        self._block_tokens, self._layout, self._attended = block_tokens, layout, attended

    def recent(self, layer: int) -> int:
        return self.tokens if self._attended else 0

    def append(self, learned: Learned) -> Update | None:
        super().append(learned)
        if self.tokens < self._block_tokens:
            return None
        complete = self._blocks
        self._blocks, self.tokens = complete + 1, 0
        return Update(partial(self._layout.column, complete), complete)


@dataclass(frozen=True)
class KeepNewest(Upkeep):
    """New tokens stay in memory for good and belong to no block; an index is that of the context alone."""

    grows = False

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        # The context's tokens that make no whole block stay beside them.
        return () if selected is None else new_tokens(room, room.output + room.context % room.block_tokens)

    def mean_recent(self, block_tokens: int, output: int) -> float:
        return (block_tokens - 1 + output) / 2

    def start(self, context: int, block_tokens: int, layout: Layout) -> Kept:
        return Newest(context, block_tokens)
