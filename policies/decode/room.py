"""The room by which the roles of a decode system are sized."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from kvferry.policies.decode.grouping import rank_of, room_tokens
from kvferry.specs.model import ModelSpec

# A part of a budget.
Share = Annotated[float, Field(gt=0, le=1)]
# Full key width over the width that is kept; None: as published; "fit": further where the budget holds no more.
Compression = Annotated[float, Field(ge=1)] | Literal["fit"] | None


@dataclass(frozen=True, kw_only=True)
class Room:
    """Sizes one sequence's KV: how much there will be, in KV blocks, and the budget to manage it with."""

    model: ModelSpec
    block_tokens: int
    context: int
    output: int
    budget_bytes: float
    # New tokens become blocks, too.
    grows: bool = True
    # Bytes of a block in one layer that are read; None: all.
    reads: int | None = None

    @property
    def tokens(self) -> int:
        """Returns the tokens in blocks, whole ones: of the context, and of what is decoded after it where that becomes
        blocks."""
        return room_tokens(self.context, self.output if self.grows else 0, self.block_tokens)

    @property
    def blocks(self) -> int:
        return self.tokens // self.block_tokens

    @property
    def context_blocks(self) -> int:
        """Returns whole blocks of the context alone."""
        return self.context // self.block_tokens

    @property
    def block_bytes(self) -> int:
        """Returns keys and values of one block in one layer, all KV heads."""
        return self.block_tokens * self.model.kv_entry_bytes

    @property
    def read_bytes(self) -> int:
        """Returns the bytes of a block in one layer that are read, and kept in a buffer."""
        return self.block_bytes if self.reads is None else self.reads

    def key_cache_bytes(self, rank: int) -> int:
        """Returns keys of all tokens and layers, compressed to `rank` numbers each."""
        return round(self.model.layers * self.tokens * rank * self.model.kv_value_bytes)

    def left_bytes(self, share: float, reserved_bytes: float) -> float:
        """Returns what keys may take: a share of the budget, or what is left beside `reserved_bytes` when that is
        less."""
        return min(share * self.budget_bytes, self.budget_bytes - reserved_bytes)

    def key_rank(self, compression: Compression, free_bytes: float, published: float) -> int:
        """Returns numbers per compressed key, all KV heads together: as `compression` leaves, or else as the one that
        is `published` does; to "fit", fewer where `free_bytes` do not hold these for all tokens. ValueError for a
        compression below 1."""
        if compression == "fit":
            fitting = int(free_bytes / (self.model.layers * self.tokens * self.model.kv_value_bytes))
            return max(1, min(fitting, rank_of(published, self.model)))
        given = published if compression is None else compression
        if not given >= 1:
            raise ValueError(f"compression is 1 or more, got {given}")
        return rank_of(given, self.model)
