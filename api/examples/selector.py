"""A selector of one's own: which KV blocks attention wants, from which query, and what is kept to score them.

    kvferry run kvswap/throughput --plugin example_policy.py --system quest --set policies.selector=example-policy

kvferry.policies.decode.selector says what a selector is asked. What scores blocks is an index (``kind``): in the
modelled world it is priced and answered from recorded or generated selections; for real it has to be one of those in
kvferry.backends.live.decoding.indexes.
"""

import math
from dataclasses import dataclass

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.top_blocks import TopByOwnQuery


# Fields are parameters of a scenario: policies: {selector: {name: example-policy, least_blocks: 8}}.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy(TopByOwnQuery):
    """The best blocks by the bounds of their keys, as Quest: a share of what is stored, and a few blocks at least."""

    kind = "page-bounds"

    share: float = 0.02
    least_blocks: int = 4

    def selected(self, block_tokens: int, stored: int) -> int | None:
        """How many of `stored` blocks each row selects."""
        return min(stored, max(self.least_blocks, math.ceil(self.share * stored)))

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        """What is kept in memory: of every block the least and the largest value of each number of its keys."""
        bounds = 2 * room.model.key_width
        n_bytes = room.model.layers * room.blocks * bounds * room.model.kv_value_bytes
        return Index(self.spec(room, bounds), n_bytes)

    def vectors(self, block_tokens: int, stored: int) -> int:
        """How many vectors are scored for `stored` blocks."""
        return stored


# What this file has, by kind and name.
KVFERRY = {"selector": {"example-policy": ExamplePolicy}}
