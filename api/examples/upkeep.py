"""An upkeep of one's own: what a new token does to KV blocks and buffers.

    kvferry run kvswap/throughput --plugin example_policy.py --set policies.upkeep=example-policy

kvferry.policies.decode.upkeep says what an upkeep is asked.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvferry.layouts.layout import Layout
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.upkeep import Kept, RollingBuffer, new_tokens
from kvferry.policies.ledger import Holding


# Fields are parameters of a scenario.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy:
    """The newest tokens stay in memory until they make a full block, which is written then; attention sees them."""

    # Blocks are those of consecutive tokens; new tokens become blocks; nothing runs beside moves or after attention.
    clusters = False
    grows = True
    beside_moves: ClassVar[tuple[str, ...]] = ()
    after_attention: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        """ValueError for parameters that cannot be: there are none."""

    def in_blocks(self, context: int, block_tokens: int, tokens: int) -> int:
        """Of a sequence's tokens, those that KV blocks have room for: here also those that still wait in memory."""
        return tokens

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        """Memory for the newest tokens of one sequence, all layers; `selected`: None where everything is read."""
        return () if selected is None else new_tokens(room, room.block_tokens)

    def mean_recent(self, block_tokens: int, output: int) -> float:
        """Newest tokens in memory, on average over the output."""
        return (block_tokens - 1) / 2

    def start(self, context: int, block_tokens: int, layout: Layout) -> Kept:
        """A run's counts; its ``append`` is called once per step, and says what is to be written."""
        return RollingBuffer(context, block_tokens, layout, attended=True)


# What this file has, by kind and name.
KVFERRY = {"upkeep": {"example-policy": ExamplePolicy}}
