"""Memory of a sequence under grouped prediction: the holdings of KVSwap's own roles with given parameters."""

from kvferry.policies.decode.grouping import Grouping, rank_of
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.upkeep import RollingGroups
from kvferry.policies.ledger import Ledger


def scored_bytes(compression: float, room: Room) -> int:
    """Returns the bytes of the compressed keys that are scored."""
    return room.key_cache_bytes(rank_of(compression, room.model))


def n_bytes(grouping: Grouping, room: Room) -> int:
    """Returns all that managing one sequence's KV takes at the end of its output: compressed keys, the reuse buffer or
    the two buffers of a selection, and the newest tokens of every layer."""
    buffers = Reuse(slots=grouping.slots).holdings(room, grouping.groups, grouping.slots)
    newest = RollingGroups().holdings(room, grouping.groups)
    return scored_bytes(grouping.compression, room) + int(Ledger((*buffers, *newest)).n_bytes(room.tokens))


def most_slots(compression: float, groups: int, room: Room) -> int:
    """Returns the slots of the largest reuse buffer that the budget holds beside keys of this compression; 0 where a
    selection finds no place in it."""
    newest_bytes = Ledger(RollingGroups().holdings(room, groups)).n_bytes(room.tokens)
    slots = Reuse().slots_within(room, groups, room.budget_bytes - scored_bytes(compression, room) - newest_bytes)
    return min(slots, room.context_blocks)
