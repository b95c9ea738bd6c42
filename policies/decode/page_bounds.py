"""Quest: KV blocks by the most that a key of theirs can score (arXiv 2406.10774)."""

from dataclasses import dataclass

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.top_blocks import TopByOwnQuery


@dataclass(frozen=True, kw_only=True)
class PageBounds(TopByOwnQuery):
    """Of each block, the least and the largest value of every number of its keys stay in memory: with the layer's own
    query, they bound the score of any key in it."""

    kind = "page-bounds"

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model = room.model
        bounds = 2 * model.key_width
        return Index(self.spec(room, bounds), model.layers * room.blocks * bounds * model.kv_value_bytes)

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored
