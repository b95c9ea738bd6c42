"""Selectors that score keys: compressed ones of every token, or one mean key per KV block."""

from dataclasses import dataclass
from typing import ClassVar

from kvferry.policies.decode.room import Compression, Room, Share
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.top_blocks import TopBlocks, TopByOwnQuery

# KVSwap 4.3: the most that keys are compressed.
MOST_COMPRESSION = 32.0


@dataclass(frozen=True, kw_only=True)
class CompressedKeys(TopBlocks):
    """A block scores as its best token does, by compressed keys of all tokens.

    ``compression``: full key width over the width that is scored; None: ``published``, whatever the budget, as wider
    keys take longer. "fit": narrower keys where ``metadata_share`` of the budget does not hold these.
    """

    published: ClassVar[float] = MOST_COMPRESSION

    compression: Compression = None
    metadata_share: Share = 1.0

    @property
    def fixed(self) -> bool:
        return self.compression != "fit"

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        free_bytes = room.left_bytes(self.metadata_share, reserved_bytes)
        rank = room.key_rank(self.compression, free_bytes, self.published)
        return Index(self.spec(room, rank), room.key_cache_bytes(rank))

    def vectors(self, block_tokens: int, stored_blocks: int) -> int:
        return stored_blocks * block_tokens


class LowRankKeys(CompressedKeys):
    """KVSwap: keys of all heads, side by side, projected to their principal directions."""

    kind = "low-rank-keys"


class PartialKeys(CompressedKeys):
    """InfiniGen: the channels that count most, after query and key weights were skewed."""

    kind = "partial-keys"
    # Assumed: three tenths of the channels, InfiniGen's partial weight ratio, from memory of the paper.
    published = 1 / 0.3


class PrincipalKeys(CompressedKeys):
    """Loki: the first principal components of each head's keys."""

    kind = "principal-keys"
    # Assumed: a quarter of the components, from memory of Loki's paper.
    published = 4.0


@dataclass(frozen=True, kw_only=True)
class Landmarks(TopByOwnQuery):
    """ShadowKV: a block scores as the mean of its keys does."""

    kind = "landmarks"
