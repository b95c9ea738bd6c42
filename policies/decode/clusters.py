"""KV blocks that are clusters of like keys, each with a pool on storage (DynaKV 5.2)."""

from dataclasses import dataclass
from typing import ClassVar

from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.pools import PoolLayout
from kvferry.policies.decode.room import Room


@dataclass(frozen=True, kw_only=True)
class ClusterPools(TokenGroups):
    """A block is a cluster with a pool of its own. The context makes as many clusters as there are whole groups of
    ``group_tokens`` in it, however many of its tokens each has.

    A pool has room for ``spare`` times the tokens that it is made for, a row for ``room`` times the clusters that all
    tokens, those of the output among them, would make at first.
    """

    clusters = True
    before_write: ClassVar[tuple[str, ...]] = ("cluster",)

    spare: int = 2
    room: int = 2

    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> PoolLayout:
        if min(self.spare, self.room) < 1:
            raise ValueError(f"spare and room are 1 or more, got {self.spare} and {self.room}")
        first = room.context_blocks
        block_tokens, more = divmod(room.context, first)
        return PoolLayout(
            layers=room.model.layers,
            sequences=sequences,
            heads=heads,
            blocks=self.room * room.blocks,
            first_blocks=first,
            block_tokens=block_tokens,
            more=more,
            token_bytes=room.model.kv_entry_bytes // heads,
            alignment_bytes=alignment_bytes,
            spare=self.spare,
        )
