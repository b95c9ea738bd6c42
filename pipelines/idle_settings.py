"""Settings that have no effect on a system, beside policies that it lacks: it is said, once, as a user asked for
them."""

from collections.abc import Collection, Iterable, Mapping

from kvferry.scenarios.hugging_face import folder_behind
from kvferry.scenarios.idle import Key
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import DecodeSpec

# By key, the field that it sets.
_OF_KV_ELSEWHERE = {("budget", "kv"): "kv_bytes", ("budget", "kv_share"): "kv_share"}
_REFINER = ("policies", "assist", "refiner")
# Why a setting of real runs has none, which `fidelity`, whose runs are real, too, leaves out.
MODELLED = "a modelled run has no use of it; --set backend=torch runs it for real"


def idle_settings(given: Collection[Key], under: Mapping[str, Scenario]) -> list[str]:
    """Returns a remark on each of the keys that a user set, and on which systems it has no effect, and why."""
    return idle_settings_of_points(given, under.items())


def idle_settings_of_points(given: Collection[Key], points: Iterable[tuple[str, Scenario]]) -> list[str]:
    """Returns the same of keys that have no effect on any of a system's points, and which models here were not
    taken."""
    under: dict[str, list[Scenario]] = {}
    for name, scenario in points:
        under.setdefault(name, []).append(scenario)
    found: dict[tuple[Key, str], list[str]] = {}
    of_whole = [_REFINER for key in given if key == _REFINER[: len(key)]]
    for key in dict.fromkeys([*given, *of_whole]):
        for name, scenarios in under.items():
            why = _why_idle(key, scenarios[0])
            if why and all(_why_idle(key, one) for one in scenarios[1:]):
                found.setdefault((key, why), []).append(name)
    models = {one.model.name: one.model.source for scenarios in under.values() for one in scenarios}
    taken = [folder_behind(*model) for model in models.items()] if ("model",) in given else []
    idle = [f"{'.'.join(key)} has no effect on {', '.join(names)}: {why}" for (key, why), names in found.items()]
    return [*idle, *filter(None, taken)]


def _why_idle(key: Key, scenario: Scenario) -> str:
    """Returns why a key has no effect in a scenario; "": it may have one."""
    if key[0] == "live" and scenario.backend == "sim":
        return MODELLED
    if key == _REFINER:
        assist = scenario.policy_values.get("assist") if scenario.backend == "sim" else None
        return "a modelled prompt has no attention to choose by" if assist and "refiner" in assist else ""
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
