"""Tune KVSwap's parameters for a scenario's device and model: lookup tables and delays from their models (A.1, A.3)."""

from dataclasses import replace

import numpy as np

from kvferry.pipelines.offload_delays import Delays
from kvferry.pipelines.offload_plan import DecodePolicy, plan_of, shape_of
from kvferry.policies.offload.grouping import Grouping
from kvferry.policies.offload.reuse_buffer import ReuseBuffer
from kvferry.policies.offload.tuner import ReuseTable, Solutions, TuningLimits, tune
from kvferry.specs.scenario import Scenario
from kvferry.traces.critical_tokens import CriticalTokens

# What the reuse table is made from: layers, sequences, and steps, of which the first fill the buffer.
_LAYERS, _SEQUENCES, _STEPS, _FILLING = 2, 2, 160, 60
# In selections: what a buffer may hold.
_CAPACITIES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
# Groups that the table is made with; rates hardly depend on it.
_GROUP_TOKENS = 4


def tune_scenario(scenario: Scenario, limits: TuningLimits) -> Solutions:
    """Solutions for every batch and context within the limits. Raises InputError when the budget holds nothing, or the
    device has no storage."""
    delays = Delays(scenario.device, scenario.model, scenario.costs.truth)
    limits = replace(limits, output=scenario.workload.output)

    def delay(batch: int, context: int, grouping: Grouping, reuse_rate: float) -> tuple[float, float]:
        policy = DecodePolicy(
            group_tokens=grouping.group_tokens,
            selected_tokens=grouping.selected_tokens,
            compression=grouping.compression,
            slots=grouping.slots,
            reuse=grouping.slots > 0,
        )
        plan = plan_of(
            policy,
            scenario.model,
            sequences=batch,
            context=context,
            output=scenario.workload.output,
            budget_bytes=float("inf"),
        )
        block = delays.block(plan, reuse_rate)
        return block.block_s, block.io_s

    return tune(shape_of(scenario.model), limits, reuse_table(scenario, limits), delay)


def reuse_table(scenario: Scenario, limits: TuningLimits) -> ReuseTable:
    """Mean reuse rates of the scenario's generated selections, by capacity in tokens."""
    workload = scenario.workload
    groups = limits.selected_tokens // _GROUP_TOKENS
    context = max(limits.most_context, 2 * limits.selected_tokens)
    capacities = [c for c in _CAPACITIES if c * limits.selected_tokens <= context]
    stream = CriticalTokens(
        layers=_LAYERS,
        sequences=_SEQUENCES,
        context=context,
        selected=groups * _GROUP_TOKENS,
        group_tokens=_GROUP_TOKENS,
        overlap=workload.overlap,
        skew=workload.skew,
        seed=scenario.seed,
    )
    rows = _LAYERS * _SEQUENCES
    buffers = [ReuseBuffer(rows, stream.context_groups, int(c * groups)) for c in capacities]
    hits = np.zeros(len(buffers))
    for step in range(_STEPS):
        stream.advance(step)
        ids = stream.units().reshape(rows, groups)
        found = [buffer.look_up(ids).hits for buffer in buffers]
        if step >= _FILLING:
            hits += found
    rates = hits / ((_STEPS - _FILLING) * rows * groups)
    return ReuseTable(tuple(c * limits.selected_tokens for c in capacities), tuple(rates.tolist()))
