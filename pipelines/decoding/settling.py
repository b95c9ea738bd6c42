"""The outcome of a tuning: Appendix A's solution with as much of the granted memory as is of use, or what the system
does on its own where that is faster."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvferry.pipelines.decoding.budget import ALIGNMENT_BYTES, GOOD_READ_BYTES
from kvferry.pipelines.decoding.paying import with_paying_slots
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import NoRoom, plan_of
from kvferry.policies.decode.grouping import Grouping
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.tuner import Solution
from kvferry.policies.decode.tuning_limits import TuningLimits, most_slots
from kvferry.specs.scenario import Scenario

# Sizes of a reuse buffer that are tried between the one that was found and the largest.
_SIZES = 9
# A larger buffer reads less, which saves energy and wear: it may cost this share of a block's time.
_UNNOTICED = 0.01
# The solution for a batch and context with given parameters.
Priced = Callable[[int, int, Grouping], Solution]


def settled(
    found: Solution, default: Solution | None, scenario: Scenario, limits: TuningLimits, priced: Priced
) -> Solution:
    """Returns the solution that was found with the largest reuse buffer that slows it unnoticed at most, or, where that
    is faster, what the system does on its own with the same memory."""
    larger = [priced(found.batch, found.context, grouping) for grouping in _larger_buffers(found, scenario, limits)]
    best = next((one for one in larger if one.block_s <= (1 + _UNNOTICED) * found.block_s), found)
    return best if default is None or best.block_s <= default.block_s else default


def _larger_buffers(found: Solution, scenario: Scenario, limits: TuningLimits) -> list[Grouping]:
    """From the largest that fits."""
    grouping = found.grouping
    room = limits.room(grouping.group_tokens, found.context, scenario.model)
    most = most_slots(grouping.compression, grouping.groups, room)
    least = max(grouping.slots + 1, grouping.groups)
    slots = sorted({*np.linspace(least, most, _SIZES).astype(int).tolist()}, reverse=True) if most >= least else []
    return [replace(grouping, slots=n) for n in slots]


@dataclass(frozen=True)
class Defaults:
    """Tells what a system does by itself, with the memory that a tuning has."""

    scenario: Scenario
    roles: Roles
    limits: TuningLimits

    def grouping(self, batch: int, context: int) -> Grouping | None:
        """Its parameters for a batch and context; None where it has no room, or where they are not within the limits,
        which keep quality."""
        plan = self._plan(batch, context)
        if plan is None or plan.keys.index is None or plan.choice.selected is None:
            return None
        compression = self.scenario.model.key_width / plan.keys.index.rank
        if plan.choice.group_tokens > self.limits.most_group_tokens or compression > self.limits.most_compression:
            return None
        return Grouping(
            group_tokens=plan.choice.group_tokens,
            compression=max(1.0, compression),
            groups=plan.choice.selected,
            slots=plan.staying.slots,
        )

    def _plan(self, batch: int, context: int) -> DecodePlan | None:
        storage = self.scenario.device.storage
        try:
            sized = partial(
                plan_of,
                model=self.scenario.model,
                sequences=batch,
                context=context,
                output=self.limits.output,
                budget_bytes=self.limits.each_bytes,
                good_read_bytes=GOOD_READ_BYTES if storage is None else storage.good_read_bytes,
                alignment_bytes=ALIGNMENT_BYTES if storage is None else int(storage.block_bytes),
            )
            return with_paying_slots(self.roles, self.scenario, sized)
        except NoRoom:
            return None
