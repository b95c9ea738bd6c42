"""Tune KVSwap's parameters for a scenario's device and model: limits, lookup table and delays (A.1, A.3)."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from kvferry.pipelines.decoding.budget import ALIGNMENT_BYTES, asked_batch, sequence_bytes
from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.runtimes import on_runtime
from kvferry.pipelines.decoding.settling import Defaults, settled
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, ROLES, DecodeSystem, tunable_systems
from kvferry.pipelines.decoding.tuned import TUNED_VALUES, grouped
from kvferry.policies.decode.grouping import Grouping, rank_of
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.sizes import StayingSizes
from kvferry.policies.decode.solutions import Solutions
from kvferry.policies.decode.tuner import BlockTimes, ReuseTable, Solution, check_budget, solution_of, tune
from kvferry.policies.decode.tuning_limits import TuningLimits
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.specs.tier import Tier
from kvferry.traces.reuse_rates import reuse_rates

# In selections: what a buffer may hold.
_CAPACITIES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
# Longer contexts have hardly lower rates, and the tables of who is where grow large.
_LONGEST = 1 << 17
# Besides these group sizes, only the largest allowed is in the table.
_GROUP_TOKENS = (1, 2, 4, 8, 16, 32, 64)


def tune_scenario(scenario: Scenario, limits: TuningLimits) -> Solutions:
    """Solutions for every batch and context within the limits: those of Appendix A, settled. Raises InputError when the
    budget holds nothing, the device lacks the tier that KV lies in, or the scenario says what is to be found."""
    system = _system(scenario)
    check_budget(scenario.model, limits)
    times = _ModelledTimes(scenario, system)
    reuse = reuse_table(scenario, limits)
    assert isinstance(system.roles.selector, LowRankKeys)
    roles = replace(system.roles, selector=replace(system.roles.selector, selected_tokens=limits.selected_tokens))
    defaults = Defaults(scenario, roles, limits)

    def priced(batch: int, context: int, grouping: Grouping) -> Solution:
        rate = reuse(context, grouping.group_tokens, grouping.slots * grouping.group_tokens)
        return solution_of(batch, context, grouping, times(batch, context, grouping, rate), scenario.model, limits)

    def default(batch: int, context: int) -> Solution | None:
        grouping = defaults.grouping(batch, context)
        return None if grouping is None else priced(batch, context, grouping)

    solved = [
        settled(one, default(one.batch, one.context), scenario, limits, priced)
        for one in tune(scenario.model, limits, reuse, times)
    ]
    own = default(limits.most_batch, limits.most_context)
    own = None if own is None else times.with_rates(own, limits, reuse)
    return Solutions(limits, [times.with_rates(one, limits, reuse) for one in solved], times.tier, own)


class _ModelledTimes:
    """Times of one block by the cost model that planners believe, instead of A.3's measured ones."""

    def __init__(self, scenario: Scenario, system: DecodeSystem) -> None:
        device = on_runtime(scenario, system).device
        self._delays = Delays(device, scenario.model, scenario.costs.estimate)
        self._scenario, self._system = scenario, system
        assert system.roles.placement.away is not None
        self.tier: Tier = system.roles.placement.away
        self._output = scenario.decode.workload.output
        self._plan = lru_cache(maxsize=1024)(self._plan_without_buffer)

    def __call__(self, batch: int, context: int, grouping: Grouping, reuse_rate: float) -> BlockTimes:
        plan = self._plan(batch, context, grouping.group_tokens, grouping.selected_tokens)
        assert plan.keys.index is not None
        index = replace(plan.keys.index, rank=rank_of(grouping.compression, plan.model))
        block = self._delays.block(
            replace(plan, keys=replace(plan.keys, index=index), staying=StayingSizes(slots=grouping.slots)),
            reuse_rate,
            self.tier,
        )
        return BlockTimes(block.block_s, block.io_s, block.overlapped_s)

    def with_rates(self, solution: Solution, limits: TuningLimits, reuse: ReuseTable) -> Solution:
        """Returns the solution with the prefill time and the token rate of a whole run, each layer's KV where the
        placement puts it."""
        grouping, batch, context = solution.grouping, solution.batch, solution.context
        # The whole budget, so that the placement knows what there is room for.
        plan = self._plan_of(grouping, batch, context, limits.each_bytes)
        rate = reuse(context, grouping.group_tokens, grouping.slots * grouping.group_tokens)
        times = self._delays.token_times_s(plan, self._output, rate)
        rates: dict[str, float] = {"prefill_s": times[0]}
        if len(times) > 1:
            rates["tokens_per_s"] = batch * (len(times) - 1) / (times[-1] - times[0])
        return solution.model_copy(update=rates)

    def _plan_without_buffer(self, batch: int, context: int, group_tokens: int, selected_tokens: int) -> DecodePlan:
        groups = -(-selected_tokens // group_tokens)
        grouping = Grouping(group_tokens=group_tokens, compression=1.0, groups=groups)
        return self._plan_of(grouping, batch, context, float("inf"))

    def _plan_of(self, grouping: Grouping, batch: int, context: int, budget_bytes: float) -> DecodePlan:
        storage = self._scenario.device.storage
        return plan_of(
            grouped(self._system, grouping).roles,
            self._scenario.model,
            sequences=batch,
            context=context,
            output=self._output,
            budget_bytes=budget_bytes,
            alignment_bytes=ALIGNMENT_BYTES if storage is None else int(storage.block_bytes),
        )


def limits_of(scenario: Scenario, **given: float | int | None) -> TuningLimits:
    """Returns limits as given, by their names; for None, what the scenario says: its budget, batch, context and
    selected tokens. Steps are so long that some three hundred pairs are solved at most. Raises InputError where the
    scenario has no such thing; pydantic's ValidationError for limits that cannot be."""
    workload = scenario.decode.workload
    values: dict[str, float | int | None] = {name: value for name, value in given.items() if value is not None}
    selector = _system(scenario).roles.selector
    assert isinstance(selector, LowRankKeys)
    selected = selector.selected_tokens
    if "selected_tokens" not in values:
        values["selected_tokens"] = selected
    elif "selected_tokens" in scenario.policy_values and values["selected_tokens"] != selected:
        raise InputError(
            f"policies.selected_tokens: {selected}, and {values['selected_tokens']} asked for; say it once"
        )
    batch = int(given.get("most_batch") or asked_batch(scenario))
    context = int(given.get("most_context") or workload.context)
    least = int(given.get("least_context") or TuningLimits.model_fields["least_context"].default)
    budget = scenario.decode.budget
    of_all = budget.kv_share is None and budget.kv_bytes is not None
    at_most = scenario.model_copy(update={"workload": workload.model_copy(update={"context": context})})
    said = {
        "most_batch": batch,
        "most_context": context,
        "budget_bytes": budget.kv_bytes if of_all else sequence_bytes(at_most, _system(scenario).roles, batch) * batch,
        "batch_step": max(1, -(-batch // 16)),
        "context_step": 2048 * max(1, -(-(context - least) // (16 * 2048))),
        "output": workload.output,
    }
    return TuningLimits.model_validate(said | values)


def _system(scenario: Scenario) -> DecodeSystem:
    """Returns the system to tune. Raises InputError for systems and settings that leave nothing to tune, or would be
    ignored."""
    system = DECODE_SYSTEMS[scenario.system]
    if not system.tunable:
        raise InputError(
            f"system: {scenario.system} has not the parameters that kvferry tune finds;"
            f" give --set system={tunable_systems()}"
        )
    for name in (*TUNED_VALUES, "tuned"):
        if name in scenario.policy_values and name != "selected_tokens":
            raise InputError(f"policies.{name}: is what kvferry tune finds; take it away")
    for name in ("per_head", *ROLES):
        if name in scenario.policy_values and name != "placement":
            raise InputError(f"policies.{name}: kvferry tune knows {scenario.system}'s own way alone; take it away")
    if scenario.decode.workload.selections is not None:
        raise InputError(
            "workload.selections: recorded for one group size, kvferry tune needs many: generated ones; take it away"
        )
    system = system.with_policies(scenario.policy_values)
    would = "storage, host or progressive would do"
    if system.roles.placement.away is None:
        raise InputError(f"policies.placement: all KV is in the processor's memory, nothing moves; {would}")
    if system.roles.placement.mapped:
        raise InputError(f"policies.placement: reads a file that is mapped into memory, of unknown price; {would}")
    if system.roles.placement.away == "storage" and scenario.device.storage is None:
        raise InputError(f"device {scenario.device.name} has no storage; its profile needs a `storage`")
    return system


def reuse_table(scenario: Scenario, limits: TuningLimits) -> ReuseTable:
    """Returns mean reuse rates of the scenario's generated selections, by context, group size and capacity."""
    contexts = limits.contexts()
    shortest, longest = (min(context, _LONGEST) for context in (contexts[0], contexts[-1]))
    doubled = [shortest << n for n in range((longest // shortest).bit_length())]
    contexts = sorted({*doubled, longest})
    most = min(limits.most_group_tokens, shortest)
    sizes = sorted({*(size for size in _GROUP_TOKENS if size < most), most})
    rates = np.array([[_reuse_rates(scenario, limits, context, size) for size in sizes] for context in contexts])
    capacities = [c * limits.selected_tokens for c in _CAPACITIES]
    return ReuseTable(contexts=contexts, group_tokens=sizes, capacity_tokens=capacities, rates=rates)


def _reuse_rates(scenario: Scenario, limits: TuningLimits, context: int, group_tokens: int) -> np.ndarray:
    """Returns the mean reuse rate at each capacity."""
    groups = limits.groups_of(group_tokens, context)
    slots = [max(groups, round(c * limits.selected_tokens / group_tokens)) for c in _CAPACITIES]
    workload = scenario.decode.workload.model_copy(update={"output": limits.output})
    return reuse_rates(workload, scenario.seed, context=context, groups=groups, group_tokens=group_tokens, slots=slots)
