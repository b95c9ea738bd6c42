"""Notes for a reader of a batch's figures: on its sizes, and on what it chose among."""

import math
from collections.abc import Iterator

from kvferry.backends.world import Shortcuts
from kvferry.pipelines.decoding.budget import stopped_at_the_most
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.runtimes import beyond_the_rows
from kvferry.policies.decode.blocking import ValueGroups
from kvferry.policies.decode.grouping import rank_of
from kvferry.policies.decode.scored_keys import CompressedKeys
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size

# Said where selections do not come from keys.
DRAWN = "selections are generated and do not depend on this selector"


def notes_on(
    scenario: Scenario, plan: DecodePlan, runtime: RuntimeSpec | None, shortcuts: Shortcuts, filled: float
) -> Iterator[str]:
    """Yields them, for users. `filled`: the share of the slots of reuse buffers that ever held a block."""
    yield from _without_effect(scenario)
    yield from stopped_at_the_most(scenario, plan.sequences)
    # With KV in the processor's memory, a reuse buffer would have nothing to keep.
    needs_bytes = None if set(plan.tiers) == {"device"} else plan.managed.reuse_needs_bytes
    if needs_bytes is not None:
        yield _without_reuse(scenario, plan, needs_bytes)
    yield from beyond_the_rows(runtime, plan.staying.slots)
    yield from _narrow_keys(plan)
    yield from _idle_share(scenario, plan)
    yield from _still_filling(scenario, plan, filled)
    given = shortcuts.keys is not None or scenario.decode.workload.selections is not None
    if shortcuts.may_skip and draws_selections(plan) and not given:
        yield f"{DRAWN}; workload.selections replays a recording"
    if plan.choice.selected is not None and plan.roles.selector.wanted_tokens(1) >= plan.most_tokens:
        yield f"nothing is left out: {plan.context + plan.output:,} tokens are no more than what is selected"


def draws_selections(plan: DecodePlan) -> bool:
    """Returns whether what is chosen is drawn in the modelled world, where no keys are scored."""
    index = plan.keys.index
    return plan.choice.selected is not None and not (index is not None and index.clusters)


def _narrow_keys(plan: DecodePlan) -> Iterator[str]:
    """Says so where keys are narrower than the system was published with, and that they hang on the budget where they
    are to fit it: more memory makes them wider, and steps longer."""
    index = plan.keys.index
    for part, verb, rank in (
        (plan.roles.selector, "scored", index.rank if index else None),
        (plan.roles.layout, "rebuilt", plan.keys.rebuilt_rank),
    ):
        if rank is None or not isinstance(part, CompressedKeys | ValueGroups) or part.compression is None:
            continue
        width, published = plan.model.key_width, rank_of(part.published, plan.model)
        if rank >= published:
            continue
        given = part.compression if part.compression == "fit" else f"{part.compression:g}"
        what = f"keys are {verb} from {rank:,} of {width:,} numbers, as policies.compression={given} has them"
        if part.compression == "fit":
            yield (
                f"{what} in this budget; as published {published:,}: a larger budget makes them wider, which takes"
                f" longer and chooses better; policies.compression={width / rank:.3g} keeps this width"
            )
        else:
            yield f"{what}; as published {published:,}, which takes longer and chooses better"


def _idle_share(scenario: Scenario, plan: DecodePlan) -> Iterator[str]:
    """Says so where a share of the budget is asked for keys whose width does not hang on it."""
    values = scenario.policy_values
    asked = any("metadata_share" in one for one in (values, *values.values()) if isinstance(one, dict))
    parts = plan.roles.selector, plan.roles.layout
    fits = (one.compression == "fit" for one in parts if isinstance(one, CompressedKeys | ValueGroups))
    if asked and not any(fits):
        yield "policies.metadata_share has no effect: keys have one width, but for compression: fit"


def _still_filling(scenario: Scenario, plan: DecodePlan, filled: float) -> Iterator[str]:
    """Says so where a part of the output stands for all of it, and is too short for the reuse buffers: the more slots
    these have, the more a longer part would reuse."""
    workload = scenario.decode.workload
    if filled < 1 and workload.decoded is not None and workload.decoded < workload.output:
        yield (
            f"the reuse buffers have {plan.staying.slots:,} slots, and the {workload.decoded:,} tokens that are decoded"
            f" fill {100 * filled:.0f} % of them: more is reused over all {workload.output:,} tokens, which"
            " workload.decoded=null decodes"
        )


def larger_budget(scenario: Scenario, plan: DecodePlan, needs_bytes: float) -> str:
    """Returns the budget that would do where each sequence needs this much of it."""
    budget, full_bytes = scenario.decode.budget, scenario.model.kv_full_bytes(plan.context)
    share = math.ceil(1e4 * needs_bytes / full_bytes) / 1e4
    if budget.kv_share is not None and share <= 1:
        return f"budget.kv_share of {share:.4f}, {shown_size(needs_bytes)}, would"
    of_all = f"budget.kv of {math.ceil(plan.sequences * needs_bytes / 2**10):,} KiB for all would"
    return of_all if budget.kv_share is None else f"budget.kv_share of null and {of_all}"


def _without_reuse(scenario: Scenario, plan: DecodePlan, needs_bytes: float) -> str:
    """Why less than a selection is reused, and the budget with which a whole one would be."""
    would = larger_budget(scenario, plan, needs_bytes)
    budget_size, slots = shown_size(plan.managed.budget_bytes), plan.staying.slots
    holds = f"a budget of {budget_size} per sequence holds no selection of every layer beside the keys"
    kept = f"a layer keeps {slots:,} of {plan.choice.selected:,} selected groups" if slots else "nothing is reused"
    return f"{kept}: {holds}; {would}"


def _without_effect(scenario: Scenario) -> Iterator[str]:
    """Yields what a scenario asks for in vain."""
    workload, live = scenario.decode.workload, scenario.decode.live
    if workload.decoded is not None and workload.decoded > workload.output:
        yield f"workload.decoded of {workload.decoded:,} has no effect: the output has {workload.output:,} tokens"
    if live.kv_file is not None and scenario.backend == "sim":
        yield "live.kv_file has no effect: a modelled run writes no KV; backend: torch does"
