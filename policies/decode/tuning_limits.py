"""Limits of a tuning, and where it looks: the user's constraints and the settings of KVSwap's appendix A."""

import math

from pydantic import ConfigDict, Field, model_validator

from kvferry.policies.decode.grouping import Grouping, rank_of
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.upkeep import RollingGroups
from kvferry.policies.ledger import Ledger
from kvferry.specs.base import BadKey, Spec
from kvferry.specs.model import ModelSpec


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


# Each is solved for: a few milliseconds.
MOST_PAIRS = 4096


class TuningLimits(Spec):
    """The budget B_max is for ``most_batch`` sequences: each has an equal part of it (A.4).

    ``output`` tokens are decoded, whose compressed keys the budget holds too. ``selected_tokens`` MG is constant (A.2).
    ``most_group_tokens`` G_max and ``most_compression`` sigma_max keep quality. ``relaxation`` alpha is the share of
    I/O that need not be hidden; ``slots_step_tokens`` delta what the reuse buffer grows by. ``tolerance`` is no number
    of the paper's: how much longer than the fastest a solution's block may take.
    """

    model_config = ConfigDict(strict=True)

    budget_bytes: float = Field(gt=0, le=1e16)
    most_context: int = Field(ge=1, le=10_000_000)
    most_batch: int = Field(ge=1, le=64)
    output: int = Field(default=0, ge=0, le=1_000_000)
    least_context: int = Field(default=4096, ge=1, le=10_000_000)
    context_step: int = Field(default=2048, ge=1, le=10_000_000)
    batch_step: int = Field(default=1, ge=1, le=64)
    selected_tokens: int = Field(default=400, ge=1, le=10_000_000)
    most_group_tokens: int = Field(default=8, ge=1, le=1024)
    most_compression: float = Field(default=32.0, ge=1, le=1e6)
    relaxation: float = Field(default=0.05, ge=0, le=1)
    tolerance: float = Field(default=0.04, ge=0, le=1)
    slots_step_tokens: int = Field(default=400, ge=1, le=10_000_000)

    @model_validator(mode="after")
    def _bounded(self) -> "TuningLimits":
        batches = -(-self.most_batch // self.batch_step) + 1
        contexts = max(0, self.most_context - self.least_context) // self.context_step + 2
        if batches * contexts > MOST_PAIRS:
            what = f"makes {batches * contexts:,} pairs of batch and context, at most {MOST_PAIRS:,} will do"
            raise BadKey("context_step", f"{what}; take longer steps")
        return self

    @property
    def each_bytes(self) -> float:
        """Returns the budget of one sequence."""
        return self.budget_bytes / self.most_batch

    def bytes_of(self, grouping: Grouping, context: int, model: ModelSpec) -> int:
        """For one sequence, at the end of its output."""
        return n_bytes(grouping, self.room(grouping.group_tokens, context, model))

    def room(self, group_tokens: int, context: int, model: ModelSpec) -> Room:
        """Returns one sequence's KV and its budget, in groups of `group_tokens` tokens."""
        return Room(
            model=model,
            block_tokens=group_tokens,
            context=context,
            output=self.output,
            budget_bytes=self.each_bytes,
        )

    def contexts(self) -> list[int]:
        """Returns the contexts that are solved for: from the least in steps to the most, which is included."""
        least = min(self.least_context, self.most_context)
        return sorted({*range(least, self.most_context + 1, self.context_step), self.most_context})

    def batches(self) -> list[int]:
        return sorted({*range(1, self.most_batch + 1, self.batch_step), self.most_batch})

    def groups_of(self, group_tokens: int, context: int) -> int:
        """M: as many groups as hold what is selected, as a run has them; all of a context that is shorter."""
        return min(math.ceil(self.selected_tokens / group_tokens), context // group_tokens)
