"""An upkeep of one's own: what a new token does to KV blocks and buffers.

    kvferry run kvswap/throughput --plugin example_policy.py --set policies.upkeep=example-policy

kvferry.policies.decode.upkeep says what an upkeep is asked.
"""

from dataclasses import dataclass

from kvferry.layouts.layout import Layout
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.upkeep import Kept, RollingBuffer, Upkeep, new_tokens
from kvferry.policies.ledger import Holding


# Fields are parameters of a scenario.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy(Upkeep):
    """The newest tokens stay in memory until they make a full block, which is written then; attention sees them."""

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        """Returns the memory for a sequence's newest tokens; `selected`: None where everything is read."""
        return () if selected is None else new_tokens(room, room.block_tokens)

    def mean_recent(self, block_tokens: int, output: int) -> float:
        """Returns the newest tokens in memory, on average over the output."""
        return (block_tokens - 1) / 2

    def start(self, context: int, block_tokens: int, layout: Layout) -> Kept:
        """Returns a run's counts; its ``append`` is called once per step, and says what is to be written."""
        return RollingBuffer(context, block_tokens, layout, attended=True)


# What this file has, by kind and name.
KVFERRY = {"upkeep": {"example-policy": ExamplePolicy}}
