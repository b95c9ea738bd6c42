"""No clusters: every entry of the KV cache is scored, and read, by itself (DynaKV 8.1's bound of accuracy)."""

from dataclasses import dataclass

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.top_blocks import TopByOwnQuery


@dataclass(frozen=True, kw_only=True)
class Entries(TopByOwnQuery):
    """All keys stay in memory; the layer's own query chooses the blocks with the best of them. A block is one token
    where it is to have no neighbours (``group_tokens`` 1)."""

    kind = "keys"

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        if room.block_tokens != 1:
            raise ValueError(f"selector keys scores single tokens: group_tokens is 1, got {room.block_tokens}")
        return super().index(room, reserved_bytes)
