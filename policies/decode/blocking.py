"""Layout roles: what a KV block is, and what the storage file holds of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.layouts.layout import Layout
from kvferry.policies.decode.room import Compression, Room, Share
from kvferry.policies.ledger import Holding


class LayoutRole(ABC):
    """Base of all layouts: blocks of consecutive tokens, as many as make a good read.

    ``clusters``: KV blocks are clusters, which differ in size and grow. ``before_write``: kinds of the stages between a
    layer's prefill and writing its KV.
    """

    clusters: ClassVar[bool] = False
    before_write: ClassVar[tuple[str, ...]] = ()

    @property
    def fixed(self) -> bool:
        """Returns whether its memory does not depend on the budget."""
        return True

    @property
    def beside_moves(self) -> tuple[str, ...]:
        """Kinds of the stages that run while a layer's KV moves to the processor."""
        return ()

    @property
    def after_prefill(self) -> tuple[str, ...]:
        """Kinds of the stages that a layer's prefill needs besides writing its KV."""
        return ()

    @property
    def reference_queries(self) -> int:
        """Returns how many of the prompts' last queries say what is wanted together."""
        return 0

    def block_tokens(self, context: int, entry_bytes: int, good_read_bytes: float) -> int:
        """Returns the tokens of a KV block, when a read of `good_read_bytes` is a good one for the storage."""
        fitting = min(context, max(1, int(good_read_bytes // entry_bytes)))
        return 1 << fitting.bit_length() - 1

    def key_rank(self, room: Room, reserved_bytes: float) -> int | None:
        """Returns the numbers per key of what stays in memory for keys to be rebuilt from, `reserved_bytes` of the
        budget being taken; None: keys are read."""
        return None

    def read_bytes(self, room: Room) -> int:
        """Returns what of a block in one layer is read. Here keys and values."""
        return room.block_bytes

    def holdings(self, room: Room, selected: int) -> tuple[Holding, ...]:
        """Returns what each sequence holds in memory for what is not read, in the group "kv", with `selected` blocks at
        a time."""
        return ()

    @abstractmethod
    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> AnyLayout:
        """Returns where blocks lie in the file. ValueError when a block has less than a byte."""


@dataclass(frozen=True, kw_only=True)
class TokenGroups(LayoutRole):
    """A block is ``group_tokens`` consecutive tokens with their keys and values; None: as many as make a good read of
    the storage. ``packed``: blocks lie one right behind the other, so that several may share a storage block; otherwise
    each begins a new one."""

    group_tokens: Annotated[int, Field(ge=1)] | None = None
    packed: bool = False

    def block_tokens(self, context: int, entry_bytes: int, good_read_bytes: float) -> int:
        if self.group_tokens is not None:
            return self.group_tokens
        return super().block_tokens(context, entry_bytes, good_read_bytes)

    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> AnyLayout:
        return self._layout(self.read_bytes(room), room, sequences, heads, 1 if self.packed else alignment_bytes)

    @staticmethod
    def _layout(n_bytes: int, room: Room, sequences: int, heads: int, alignment_bytes: int) -> Layout:
        if n_bytes < heads:
            raise ValueError(f"what is read of {room.block_tokens:,} tokens takes less than a byte; more tokens would")
        return Layout(
            layers=room.model.layers,
            sequences=sequences,
            blocks=room.blocks,
            block_bytes=n_bytes // heads,
            heads=heads,
            alignment_bytes=alignment_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class ValueGroups(TokenGroups):
    """Values alone are read; keys stay in memory, decomposed at prefill, and are rebuilt meanwhile (ShadowKV).

    ``compression``: full key width over the width that stays; None: ``published``, whatever the budget, as wider keys
    take longer. "fit": narrower keys where ``metadata_share`` of the budget does not hold these.
    """

    # Rank 160 of 1,024 numbers (ShadowKV 5).
    published: ClassVar[float] = 6.4

    compression: Compression = None
    metadata_share: Share = 1.0

    @property
    def fixed(self) -> bool:
        return self.compression != "fit"

    @property
    def beside_moves(self) -> tuple[str, ...]:
        return ("rebuild",)

    @property
    def after_prefill(self) -> tuple[str, ...]:
        return ("decompose",)

    def key_rank(self, room: Room, reserved_bytes: float) -> int | None:
        free_bytes = room.left_bytes(self.metadata_share, reserved_bytes)
        return room.key_rank(self.compression, free_bytes, self.published)

    def read_bytes(self, room: Room) -> int:
        return room.block_bytes // 2

    def holdings(self, room: Room, selected: int) -> tuple[Holding, ...]:
        # In two buffers, of the layer that computes and of the next.
        rebuilt_bytes = 2 * selected * (room.block_bytes - self.read_bytes(room))
        return (Holding.of("kv: rebuilt keys", rebuilt_bytes, "sequence"),)
