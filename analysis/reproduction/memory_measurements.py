"""Figures about what memory holds, and what choosing KV costs, while decoding: each of a few short runs.

Each takes the scenario of an experiment's case and returns figures by name, as a run's metrics.
"""

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.ops import OPS, Reconstruct
from kvferry.pipelines.decoding.budget import free_bytes
from kvferry.pipelines.decoding.peak import Peak
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_whole
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.request import Request

Figures = dict[str, float]
# How near to a threshold of memory is gone.
_NEAR_TOKENS = 32
_MOST_TOKENS = 10_000_000


def largest_batch(scenario: Scenario) -> Figures:
    """How many sequences decode together at most; 0: not even one."""
    workload = scenario.decode.workload
    most = _with(scenario, batch="max")
    system = DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
    if system.roles.all_in_memory:
        request = Request(0.0, workload.context, workload.output)
        peak = Peak(system.roles, scenario.model)
        return {"batch": peak.sequences_within(free_bytes(most, system.roles), request)}
    try:
        return {"batch": plan_for(most, system).sequences}
    except InputError:
        return {"batch": 0}


def drop_at_threshold(scenario: Scenario) -> Figures:
    """What throughput loses, in percent, where a prompt is so much longer that KV no longer stays in the processor's
    memory; and the tokens of the longest prompt whose KV does. The scenario's own prompt must be shorter."""
    fits, beyond = scenario.decode.workload.context, scenario.decode.workload.context
    while not _moves(_run_at(scenario, beyond)):
        fits, beyond = beyond, 2 * beyond
        if beyond > _MOST_TOKENS:
            raise KvferryError("KV of any length stays in the processor's memory: there is no threshold")
    while beyond - fits > _NEAR_TOKENS:
        middle = (fits + beyond) // 2
        if _moves(_run_at(scenario, middle)):
            beyond = middle
        else:
            fits = middle
    before, after = (_tokens_per_s(scenario, tokens) for tokens in (fits, beyond))
    return {"throughput_drop_percent": 100 * (1 - after / before), "threshold_tokens": fits}


def choosing_share(scenario: Scenario) -> Figures:
    """Of the time of decoding, what goes into choosing KV and bringing it, in percent, where layers wait for both."""
    decoded = run_whole(scenario).decoded
    if decoded is None or decoded.half is None:
        raise KvferryError("needs workload.decoded, less than workload.output")
    half, end = decoded.half, decoded.end
    # Chosen keys are made of their low-rank cache, where one is kept, before a layer attends.
    choosing = [label for label, op in OPS.items() if op.purpose == "choosing KV" or op is Reconstruct]
    kinds = {(scenario.device.main, label) for label in choosing} | {("copy", "Copy")}
    spent_s = sum(end.busy_s.get(kind, 0.0) - half.busy_s.get(kind, 0.0) for kind in kinds)
    return {"choosing_percent": 100 * spent_s / (end.now_s - half.now_s)}


def _with(scenario: Scenario, **changes: object) -> Scenario:
    workload = scenario.decode.workload.model_copy(update=changes)
    return scenario.model_copy(update={"workload": workload})


def _run_at(scenario: Scenario, tokens: int) -> Run:
    run = run_whole(_with(scenario, context=tokens))
    if run.outcome != "done":
        raise KvferryError(f"with a prompt of {tokens:,} tokens: {run.outcome}, {run.why}")
    return run


def _moves(run: Run) -> bool:
    return run.tally.bytes_of("copy", "Copy") > 0


def _tokens_per_s(scenario: Scenario, tokens: int) -> float:
    at = _with(scenario, context=tokens)
    return metrics_for(at, _run_at(scenario, tokens))["throughput_tokens_per_s"]
