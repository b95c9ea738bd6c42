"""Scenarios from the ends of what is valid, and damaged ones: a finite result, the same twice, or a message."""

import json
import math
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from damage import damaged_lines
from extreme_heat import heat
from extreme_offload import offloaded
from extremes import scenario
from limited import Called, called
from seeds import blocks, check_each

from kvferry.traces.resolve import bundled

HERE = "tests/fuzz/test_scenarios.py"
# The latest `link.offset` that extremes.py draws.
LATEST_S = 1e7
EXAMPLES = ("quickstart", "sparkv/concurrency", "kvswap/throughput")


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The systems by the workload that they run."""
    listed = json.loads(called("systems", "--json", folder=tmp_path_factory.mktemp("systems")).out)["systems"]
    return {
        kind: [row["name"] for row in listed if row["workload"] == kind] for kind in {r["workload"] for r in listed}
    }


def traces() -> list[str]:
    return [name for name in bundled() if not name.startswith("load")]


def wrong_with(result: dict[str, Any]) -> str | None:
    """What no result may say."""
    metrics = result["metrics"]
    odd = [key for key, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
    if odd:
        return f"not finite: {odd}"
    # A clock of 53 bits that stands at centuries has no moments left to compare.
    lasted_s = max(metrics.get("ttft_p95_s", 0.0), 2000 * metrics.get("tpot_s", 0.0), metrics.get("largest_gap_s", 0.0))
    if lasted_s > 1e9:
        return None
    # Shares of a load are as exact as the clock, which takes nanoseconds less exactly behind hours of requests, and as
    # the time within a trace, of which a replay may begin months behind the start.
    ended_s = metrics.get("requests", 1) * (metrics.get("ttft_p95_s", 0.0) + 2000 * metrics.get("tpot_s", 0.0))
    clock = 4 * sys.float_info.epsilon * (ended_s + LATEST_S) / metrics.get("bound_s", math.inf)
    least = dict.fromkeys(("bound_gap", "regret", "regret_p95"), -max(1e-6, clock))
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    negative = [key for key, value in numbers.items() if value < least.get(key, -1e-9)]
    if negative:
        return f"below 0: {negative}"
    # Further turns of a conversation load nothing, and count in the mean time to the first token.
    if metrics.get("bound_s", 0.0) > metrics.get("ttft_s", math.inf) * metrics.get("requests", 1) * (1 + 1e-9):
        return f"a bound of {metrics['bound_s']} s above the {metrics['ttft_s']} s that it took"
    if result["outcome"] not in ("done", "out_of_memory", "infeasible"):
        return f"outcome {result['outcome']}"
    return None


def judged(found: Called) -> str | None:
    if found.fault:
        return f"{found.fault}: {found}"
    return wrong_with(json.loads(found.out)) if found.code == 0 else None


@blocks(quick=8, long=5000, size=8)
def test_extreme_scenarios(seeds: range, tmp_path: Path, systems: dict[str, list[str]]) -> None:
    def case(seed: int) -> str | None:
        drawn = scenario(Random(seed), systems, traces())
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(drawn, sort_keys=False))
        first = called("run", "s.yaml", "--json", folder=tmp_path)
        why = judged(first)
        if why is None and seed % 4 == 0 and not first.is_long:
            again = called("run", "s.yaml", "--json", folder=tmp_path)
            if not again.is_long and (again.code, again.out) != (first.code, first.out):
                return "a second run printed something else"
        return why

    check_each(seeds, f"{HERE}::test_extreme_scenarios", case)


@blocks(quick=4, long=400, size=4, first=8)
def test_devices_that_warm_up(seeds: range, tmp_path: Path, systems: dict[str, list[str]]) -> None:
    """And clouds beside them."""

    def case(seed: int) -> str | None:
        chance = Random(seed)
        drawn = scenario(chance, systems, traces())
        for machine in (drawn, *drawn.get("machines", {}).values()):
            machine["device"]["heat"] = heat(chance)
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(drawn, sort_keys=False))
        return judged(called("run", "s.yaml", "--json", folder=tmp_path))

    check_each(seeds, f"{HERE}::test_devices_that_warm_up", case)


@blocks(quick=4, long=400, size=4, first=4)
def test_weights_that_do_not_fit(seeds: range, tmp_path: Path, systems: dict[str, list[str]]) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        # Most take it.
        of = systems if chance.random() < 0.2 else {"decode": systems["decode"]}
        (tmp_path / "s.yaml").write_text(
            yaml.safe_dump(offloaded(chance, scenario(chance, of, traces())), sort_keys=False)
        )
        return judged(called("run", "s.yaml", "--json", folder=tmp_path))

    check_each(seeds, f"{HERE}::test_weights_that_do_not_fit", case)


@blocks(quick=15, long=1500, size=15)
def test_damaged_scenarios(seeds: range, tmp_path: Path, systems: dict[str, list[str]]) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        text = yaml.safe_dump(scenario(chance, systems, traces()), sort_keys=False)
        (tmp_path / "s.yaml").write_bytes(damaged_lines(chance, text).encode("utf-8", "surrogatepass"))
        return judged(called("run", "s.yaml", "--json", folder=tmp_path))

    check_each(seeds, f"{HERE}::test_damaged_scenarios", case)


@blocks(quick=3, long=300, size=3)
def test_other_commands_on_extreme_scenarios(seeds: range, tmp_path: Path, systems: dict[str, list[str]]) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        drawn = scenario(chance, systems, traces())
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(drawn, sort_keys=False))
        two = ",".join(chance.sample(systems[drawn["workload"]["kind"]], 2))
        words = chance.choice([["schedule"], ["tune", "--kv-memory", "100 MiB"], ["compare", "--systems", two]])
        found = called(words[0], "s.yaml", *words[1:], "--json", folder=tmp_path)
        return f"{words[0]}: {found.fault}: {found}" if found.fault else None

    check_each(seeds, f"{HERE}::test_other_commands_on_extreme_scenarios", case)
