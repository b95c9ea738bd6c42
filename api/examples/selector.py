"""A selector of one's own: which KV blocks attention wants, from which query, and what is kept to score them.

    kvferry run kvswap/throughput --plugin example_policy.py --system quest --set policies.selector=example-policy

kvferry.policies.decode.selector says what a selector is asked. What scores blocks is an index: one of KVFerry's by its
``kind``, as here, or one of your own (kvferry new policy NAME --role index), whose selector is a ByIndex. One of your
own scores real keys in a real run and drawn keys in the modelled world. With one of KVFerry's, the modelled world knows
what it costs and generates selections that do not depend on the selector; workload.selections replays a recording. What
``take`` makes of them counts in both worlds.
"""

import math
from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.top_blocks import TopByOwnQuery
from kvferry.specs.model import ModelSpec


# Fields are parameters of a scenario: policies: {selector: {name: example-policy, least_blocks: 8}}.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy(TopByOwnQuery):
    """The best blocks by the bounds of their keys, as Quest: a share of what is stored, and a few blocks at least; with
    the beginning, into which attention sinks, and the newest."""

    kind = "page-bounds"

    share: float = 0.02
    least_blocks: int = 4

    def selected(self, block_tokens: int, stored_blocks: int) -> int | None:
        """Returns how many of the stored blocks each row selects; memory is held for them."""
        return min(stored_blocks, max(self.least_blocks, math.ceil(self.share * stored_blocks)))

    def rank(self, model: ModelSpec) -> int:
        """Returns the numbers kept and scored per block: the least and the largest value of each number of its keys."""
        return 2 * model.key_width

    def take(self, ranked: Ranked) -> BlockRows:
        """Returns what is wanted, given the machine's answer: here its first block and the newest two always are, in
        the place of the worst. Any blocks that are stored may be returned, each once in a row."""
        newest = np.arange(max(0, ranked.stored_blocks - 2), ranked.stored_blocks)
        return ranked.best_with(np.append(newest, 0))


# What this file has, by kind and name.
KVFERRY = {"selector": {"example-policy": ExamplePolicy}}
