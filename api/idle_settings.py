"""Settings beside policies that have no effect on a system: it is said, once, as a user asked for them."""

from collections.abc import Collection, Mapping

from kvferry.scenarios.idle import Key
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import DecodeSpec

# By key, the field that it sets.
_OF_KV_ELSEWHERE = {("budget", "kv"): "kv_bytes", ("budget", "kv_share"): "kv_share"}


def idle_settings(given: Collection[Key], under: Mapping[str, Scenario]) -> list[str]:
    """Returns a remark on each of the keys that a user set, and on which systems it has no effect, and why."""
    found: dict[tuple[Key, str], list[str]] = {}
    for key in given:
        for name, scenario in under.items():
            if why := _why_idle(key, scenario):
                found.setdefault((key, why), []).append(name)
    return [f"{'.'.join(key)} has no effect on {', '.join(names)}: {why}" for (key, why), names in found.items()]


def _why_idle(key: Key, scenario: Scenario) -> str:
    """Returns why a key has no effect in a scenario; "": it may have one."""
    if not isinstance(scenario.workload, DecodeSpec):
        return ""
    if key[0] == "link":
        return "decoding fetches nothing over a link"
    if key not in _OF_KV_ELSEWHERE or getattr(scenario.budget, _OF_KV_ELSEWHERE[key]) is None:
        return ""
    # Not at the top: a run of another kind would load what decodes.
    from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS

    system = DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
    return "" if system.roles.placement.away else "its KV is all in memory, which budget.in_memory_kv limits"
