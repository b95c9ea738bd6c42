"""Whether systems that decode were compared at equal memory: the peaks of their KV, and what they were granted."""

from collections.abc import Mapping

from kvferry.specs import human
from kvferry.specs.scenario import Scenario

Metrics = Mapping[str, float]
_PEAK = "kv_memory_peak_bytes"
# This many times the smallest peak are still as much: blocks and pages are whole.
_AS_MUCH = 1.5
_ALL_FREE = "all memory that is free"


def unequal_memory(systems: Mapping[str, Metrics], scenarios: Mapping[str, Scenario] | None = None) -> str | None:
    """Returns a line that says how far the KV memory peaks of systems that decode lie apart, what each was granted
    where their `scenarios` are at hand, and how to grant all the same; None where the peaks are alike."""
    peaks = {name: one[_PEAK] for name, one in systems.items() if "tokens_decoded" in one and one.get(_PEAK)}
    if not peaks or max(peaks.values()) <= _AS_MUCH * min(peaks.values()):
        return None
    least, most = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    line = (
        f"not at equal memory: KV memory peaks from {human.size(peaks[least])} ({least}) to"
        f" {human.size(peaks[most])} ({most})"
    )
    by_grant: dict[str, list[str]] = {}
    for name, scenario in (scenarios or {}).items():
        if name in peaks:
            by_grant.setdefault(granted(scenario), []).append(name)
    grants = [f"{', '.join(names)}: {grant}" for grant, names in by_grant.items()]
    line += f"; granted: {'; '.join(grants)}" if grants else ""
    less = [name for name in peaks if scenarios and _takes_less(scenarios[name], systems[name])]
    if len(less) == len(peaks):
        return f"{line}; each takes less than it is granted: a larger grant changes none of them"
    unmoved = f"; {', '.join(less)} {'take' if len(less) > 1 else 'takes'} no more of a larger one" if less else ""
    return (
        f"{line}; --set budget.kv=SIZE --set budget.kv_share=null --set budget.in_memory_kv=SIZE grants all the same,"
        f" of which a system may take less{unmoved}"
    )


def _takes_less(scenario: Scenario, metrics: Metrics) -> bool:
    """Returns whether a system's KV leaves a good part of its grant unused, so that the grant does not limit it."""
    from kvferry.pipelines.decoding.budget import free_bytes, sequence_bytes
    from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS

    roles = DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values).roles
    if roles.all_in_memory:
        n_bytes = scenario.decode.budget.in_memory_kv_bytes or free_bytes(scenario, roles)
    else:
        n_bytes = metrics["batch"] * sequence_bytes(scenario, roles, round(metrics["batch"]))
    return _AS_MUCH * metrics[_PEAK] < n_bytes


def granted(scenario: Scenario) -> str:
    """Returns what the budget lets the KV of a scenario's system take of memory, and which key says so."""
    from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS

    budget = scenario.decode.budget
    if DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values).roles.all_in_memory:
        n_bytes = budget.in_memory_kv_bytes
        return _ALL_FREE if n_bytes is None else f"{human.size(n_bytes)} (budget.in_memory_kv)"
    if budget.kv_share is not None:
        return f"{human.percent(budget.kv_share)} of a full cache (budget.kv_share)"
    return _ALL_FREE if budget.kv_bytes is None else f"{human.size(budget.kv_bytes)} (budget.kv)"
