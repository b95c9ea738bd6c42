"""A residency of one's own: which KV blocks stay in the processor's memory from one step to the next.

    kvferry run kvswap/throughput --plugin example_policy.py --set policies.residency=example-policy

kvferry.policies.decode.residency says what a residency is asked.
"""

from dataclasses import dataclass

from kvferry.policies.decode.residency import NothingKept, Residency
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.slot_table import Resident


# Fields are parameters of a scenario: policies: {residency: {name: example-policy, selections: 3}}.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy(Residency):
    """A reuse buffer, first in, first out, for this many selections of each layer: no more, however large the
    budget."""

    selections: float = 2.0

    @property
    def fixed(self) -> bool:
        """Returns whether its memory is the same for every budget."""
        return False

    def slots_within(self, room: Room, selected: int, left_bytes: float) -> int:
        """Returns the slots per row and layer: `selected` blocks are wanted at a time, `left_bytes` are free."""
        fitting = int(left_bytes / (room.model.layers * room.block_bytes))
        wanted = int(self.selections * selected)
        return min(wanted, fitting) if min(wanted, fitting) >= selected else 0

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        """Returns one layer's blocks over a run; ReuseBuffer finds them and says which are missing."""
        return ReuseBuffer(rows, blocks, slots) if slots else NothingKept()


# What this file has, by kind and name.
KVFERRY = {"residency": {"example-policy": ExamplePolicy}}
