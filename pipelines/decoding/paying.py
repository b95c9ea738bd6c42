"""Sizes of a plan that hang on a device's speed: the reuse buffer of a system that was told no size, no larger than
pays on its runtime, and what is read ahead."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.runtimes import on_runtime
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.specs.scenario import Scenario
from kvferry.traces.reuse_rates import reuse_rates

# From one number that is tried to the next.
_STEP = 1.06
# By this share of its time a block is surely faster with more slots, as estimates go.
_SURE = 0.005
# In selections: the buffers whose reuse is looked up; between them it is taken to be linear.
_CAPACITIES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0)


def with_paying_slots(roles: Roles, scenario: Scenario, sized: Callable[[Roles], DecodePlan]) -> DecodePlan:
    """Returns the sizes of these roles, whose reuse buffer, where they leave its size open, is no larger than what
    serves a Transformer block best, as the scenario's estimates have it: KVSwap's runtime searches all slots for each
    block, so that more memory would make it slower. Raises InputError where `sized` does."""
    plan = sized(roles)
    residency, away, selected = roles.residency, roles.placement.away, plan.choice.selected
    if not isinstance(residency, Reuse) or residency.slots is not None or away is None or roles.placement.mapped:
        return plan
    if not selected:
        return plan
    # A context shorter than a selection is followed by an output that makes it as large.
    least = roles.selector.selected(plan.choice.group_tokens, plan.layout.blocks) or selected
    if plan.staying.slots <= least:
        return plan
    device = on_runtime(scenario).device
    if not device.processors[device.main].slot_s:
        return plan
    delays, fitting = Delays(device, scenario.model, scenario.costs.estimate), plan.staying.slots
    capacities = [round(one * selected) for one in _CAPACITIES]
    rates = reuse_rates(
        scenario.decode.workload,
        scenario.seed,
        context=plan.context,
        groups=selected,
        group_tokens=plan.choice.group_tokens,
        slots=capacities,
    )

    def took_s(slots: int) -> float:
        rate = float(np.interp(slots, capacities, rates))
        return delays.block(replace(plan, staying=replace(plan.staying, slots=slots)), rate, away).block_s

    paying = paying_slots(least, fitting, took_s)
    return plan if paying == fitting else sized(replace(roles, residency=replace(residency, slots=paying)))


def with_read_ahead(plan: DecodePlan, scenario: Scenario) -> DecodePlan:
    """Returns the plan with what of a layer is read while the one before computes, as the scenario's estimates have
    it."""
    if not plan.roles.residency.swaps or "storage" not in plan.tiers:
        return plan
    delays = Delays(on_runtime(scenario).device, scenario.model, scenario.costs.estimate)
    return replace(plan, staying=replace(plan.staying, ahead=delays.read_ahead(plan)))


def tried_slots(selected: int, fitting: int) -> list[int]:
    """Returns numbers of slots between one selection and all that fit, ascending. They do not depend on what fits: with
    more memory, the same are tried and more."""
    steps = range(int(math.log(fitting / selected, _STEP)) + 1)
    return sorted({int(selected * _STEP**n) for n in steps})


def paying_slots(selected: int, fitting: int, took_s: Callable[[int], float]) -> int:
    """Returns the number of slots, `fitting` at most, beyond which more hardly save time. A larger buffer is taken
    where it is surely faster than the smaller ones: estimates that err by less than that never take a slower one."""
    paying, paying_s = selected, took_s(selected)
    for slots in tried_slots(selected, fitting):
        if (slots_s := took_s(slots)) <= (1 - _SURE) * paying_s:
            paying, paying_s = slots, slots_s
    return paying
