"""Finds how many machines, or whatever else a scenario counts, let enough requests keep their limits."""

from __future__ import annotations

from collections.abc import Callable

from kvferry.analysis.capacity import Capacity, Trial, least_count
from kvferry.analysis.capacity import trial as carried_out
from kvferry.api.scenario import Settings, Source, load, overrides_of
from kvferry.pipelines.run import run_whole
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# More than that and a run is of another kind.
MOST = 4096


def capacity(
    source: Source,
    least: str = "machines.cloud.count",
    settings: Settings = (),
    *,
    slo_attainment: float = 0.95,
    most: int = MOST,
    seeds: int = 1,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> Capacity:
    """Finds the least whole number of a setting with which a share of the requests keeps the scenario's `slo`.

    `least`: the setting, by its path. `slo_attainment`: that share, the median over as many `seeds`, from the
    scenario's own on. `most`: the largest number to try. `tried` is called with each trial. Raises InputError for a
    scenario without `slo`, a setting that is no whole number, and all that ``load`` raises.
    """
    if not 0 < slo_attainment <= 1:
        raise InputError(f"slo_attainment: {slo_attainment:g} is no share; 0.95 would do")
    for name, value in (("most", most), ("seeds", seeds)):
        if value < 1:
            raise InputError(f"{name}: {value} is less than 1")
    base = load(source, settings)
    if base.slo is None:
        raise InputError("slo: is missing in the scenario, so no request keeps or breaks it; --set slo.ttft='2 s'")
    _check_machine(base, least)
    asked = overrides_of(settings)

    def scenarios(count: int) -> list[Scenario]:
        return [
            load(source, [*asked, f"{least}={count}", f"seed={seed}"]) for seed in range(base.seed, base.seed + seeds)
        ]

    def trial_of(count: int) -> Trial:
        found = carried_out(count, scenarios(count), run_whole)
        tried(found)
        return found

    if scenarios(1) == scenarios(2):
        raise InputError(f"least: {least} changes nothing in this scenario")
    return least_count(least, slo_attainment, most, trial_of, base.slo)


def _check_machine(scenario: Scenario, least: str) -> None:
    """Raises InputError for the count of a machine that the scenario does not have."""
    part, _, rest = least.partition(".")
    name = rest.partition(".")[0]
    if part == "machines" and name not in scenario.machines:
        others = " or ".join(f"machines.{one}.count" for one in scenario.machines) or "a scenario with a cloud"
        raise InputError(f"least: the scenario has no machines.{name}; {others} would do")
