"""``tune`` never loses to not tuning: what it found and the default are both run, and the faster one is kept."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kvferry.api.result import run
from kvferry.api.tune import Tuned, tune
from kvferry.api.tune_check import checked
from kvferry.pipelines.decoding.settling import settled
from kvferry.policies.decode.grouping import Grouping
from kvferry.policies.decode.solutions import Solutions
from kvferry.policies.decode.tuner import Solution
from kvferry.policies.decode.tuning_limits import TuningLimits
from kvferry.scenarios.loader import load_scenario

RATE = "throughput_tokens_per_s"
NANO: dict[str, Any] = {
    "name": "nano",
    "system": "kvswap",
    "device": {"extends": "jetson-orin-nano-8gb", "name": "my-nano", "storage": "nvme"},
    "model": "llama-3.2-3b",
    "link": {"rate": "100 Mbit/s"},
    "workload": {"kind": "decode", "context": "4Ki tokens", "output": 256},
    "measure": "decode",
}


@cache
def tuned(runtime: str, storage: str = "nvme") -> Tuned:
    """For one pair, 4Ki tokens of one sequence."""
    settings = {"runtime": runtime, "device.storage": storage}
    return tune(NANO, settings, kv_memory="60 MiB", least_context="4Ki")


@pytest.mark.parametrize("runtime", ["kvswap-prototype", "ideal"])
@pytest.mark.parametrize("storage", ["nvme", "emmc"])
def test_what_is_kept_is_never_slower_than_the_default(runtime: str, storage: str) -> None:
    found = tuned(runtime, storage)
    check = found.check
    assert check is not None
    kept = {"tuned": check.tuned, "default": check.default}[check.kept]
    assert kept[RATE] == max(check.tuned[RATE], check.default[RATE])
    said = [line for line in found.remarks if line.startswith("kept for this batch and context")]
    assert len(said) == 1
    # The default's figures are those of a run that is not tuned, with the same memory.
    changes = {"runtime": runtime, "device.storage": storage, "budget.kv": "60 MiB", "workload.decoded": 64}
    assert check.default[RATE] == run(NANO, changes, intervals=False).metrics[RATE]


def test_memory_that_was_granted_is_used_where_it_costs_nothing() -> None:
    """Software that searches among slots in no time: all of the budget becomes slots."""
    ideal = tuned("ideal").solutions
    (solution,) = ideal.solved.values()
    slot_bytes = load_scenario(NANO).model.layers * solution.grouping.group_tokens * 4096
    assert 0 <= 60 * 2**20 - solution.memory_bytes < slot_bytes


def test_a_solution_that_loses_its_run_makes_way() -> None:
    """A tuning that prices misled: single tokens without a buffer, which read most."""
    scenario = load_scenario(NANO, ["runtime=ideal", "device.storage=emmc"])
    found = tuned("ideal").solutions
    (good,) = found.solved.values()
    bad = good.model_copy(update={"grouping": Grouping(group_tokens=1, compression=32.0, groups=400)})
    kept, check = checked(scenario, Solutions(found.limits, [bad], found.tier, default=good))
    assert check is not None
    assert check.kept == "default"
    assert check.default[RATE] > check.tuned[RATE]
    assert [*kept.solved.values()] == [good]
    assert "the default" in check.said()
    # Where the default's groups are larger than the limits allow, it is said, and not kept.
    kept, check = checked(scenario, Solutions(found.limits, [bad], found.tier))
    assert check is not None
    assert [*kept.solved.values()] == [bad]
    assert "is not kept: its groups are larger" in check.said()


def test_the_buffer_grows_as_long_as_it_costs_nothing_by_hand() -> None:
    scenario = load_scenario(NANO)
    limits = TuningLimits(budget_bytes=100 * 2.0**20, most_context=16384, most_batch=1)
    small = Grouping(group_tokens=4, compression=32.0, groups=100, slots=100)

    def solution(grouping: Grouping, block_s: float) -> Solution:
        n_bytes = limits.bytes_of(grouping, 16384, scenario.model)
        return Solution(
            batch=1, context=16384, grouping=grouping, memory_bytes=n_bytes, block_s=block_s, io_s=1.0, overlap=1.0,
            hidden=True,
        )  # fmt: skip

    def kept(slot_s: float, default: Solution | None = None, larger_s: float = 1.0) -> Grouping:
        def priced(batch: int, context: int, grouping: Grouping) -> Solution:
            return solution(grouping, larger_s + slot_s * (grouping.slots - 100))

        return settled(solution(small, 1.0), default, scenario, limits, priced).grouping

    # 28 layers of 4 entries of 4 KiB: 448 KiB a slot; 64 B of 16,384 keys in each layer are 28 MiB.
    assert kept(0.0).slots == (100 * 2**20 - 28 * 2**20) // (448 * 2**10) - 1
    # A hundredth longer is not noticed.
    assert kept(0.0, larger_s=1.01) == kept(0.0) and kept(0.0, larger_s=1.0101) == small
    assert kept(1.0) == small
    own = replace(small, group_tokens=8, groups=50)
    assert kept(1.0, solution(own, 0.9)) == own
    assert kept(1.0, solution(own, 1.0)) == small, "as fast is not faster"


@pytest.mark.parametrize("budget", [(None, "100 MiB"), (None, "300 MiB"), ("1 GiB", "150 MiB")])
def test_more_memory_makes_no_system_noticeably_slower(budget: tuple[str | None, str]) -> None:
    """Beyond the slots that its cost was fitted on, a search costs no more."""
    rates = [
        run(
            NANO, {"runtime": "kvswap-prototype", "workload.context": "32Ki", "workload.decoded": 40, "budget.kv": kv}
        ).metrics[RATE]
        for kv in budget
    ]
    assert rates[0] > 0.95 * rates[1]


def test_a_run_says_that_its_slots_are_more_than_was_fitted() -> None:
    many = {"workload.context": "32Ki", "workload.decoded": 4, "policies.slots": "all"}
    notes = run(NANO, many, intervals=False).run.notes
    assert any("the most that kvswap-prototype was fitted on" in note for note in notes)
    notes = run(NANO, {"workload.decoded": 4, "budget.kv": "100 MiB"}, intervals=False).run.notes
    assert not any("was fitted on" in note for note in notes)
