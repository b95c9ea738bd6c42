"""A run's steps priced again on another device: by hand, and against runs there."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.ops import Bookkeep, Extents, Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.elsewhere import Elsewhere, as_first_tokens, together
from kvferry.pipelines.decoding.noted import NOTED_STEPS, Move, Noted, Notes, noted_steps
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Part, Parts
from kvferry.pipelines.decoding.queue_work import QueueWork
from kvferry.pipelines.decoding.replay import Replay
from kvferry.pipelines.decoding.runtimes import on_runtime, others
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.engine_memory import offload_of
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.slowed import slowed, with_slowed_storage
from kvferry.specs.scenario import Scenario
from kvferry.specs.tier import Tier

ON_NVME = ["device.storage=nvme", "workload.decoded=24"]


class ByHand(QueueWork):
    """An op takes 3 s, and a move one second for each of its commands and five for a copy."""

    def __init__(self, faster: float = 1.0) -> None:
        self.beside, self.beside_processor, self._faster = {}, {}, faster

    def work(self, op: Op) -> Parts:
        return (Part("processor", 3.0 / self._faster),)

    def move(self, plan: DecodePlan, lengths: np.ndarray, source: Tier, to: Tier) -> Parts:
        return (Part("storage", float(len(lengths))), Part("copies", 5.0))


def test_what_was_noted_is_timed_by_hand() -> None:
    """An op until 3 s is waited for; four commands and a copy until 12 s; beside them an op until 6 s, and behind both
    another until 15 s; a move that is not waited for ends at 21 s."""
    notes, tickets = Notes(), [Ticket.__new__(Ticket) for _ in range(5)]
    op, move = Bookkeep(1), Move(Extents([0, 8192, 16384, 32768], [512] * 4), "storage", "device")
    notes.add(op, (), tickets[0])
    notes.awaited(tickets[0])
    notes.add(move, (tickets[0],), tickets[1])
    notes.add(op, (tickets[0],), tickets[2])
    notes.add(op, (tickets[1], tickets[2]), tickets[3])
    notes.awaited(tickets[3])
    notes.add(move, (tickets[3],), tickets[4])
    scenario = load_scenario("decode", ["system=kvswap", *ON_NVME])
    plan = plan_for(scenario, DECODE_SYSTEMS["kvswap"])
    replay = Replay(Noted(notes, notes), plan, scenario.device.storage)
    assert replay.seconds(ByHand()) == (24.0, 15.0)
    # Moves take as long as before: until 1 + 9 + 1 s.
    assert replay.seconds(ByHand(faster=3.0)) == (20.0, 11.0)
    assert Replay(Noted(), plan, scenario.device.storage).seconds(ByHand()) == (0.0, 0.0)


Changed = Callable[[Scenario], Scenario]
ENDS: dict[str, Changed] = {
    "decoding": lambda one: slowed(one, decoding=1.3),
    "faster": lambda one: slowed(one, decoding=1 / 1.3),
    "prefill": lambda one: slowed(one, prefill=1.5),
    "storage": lambda one: with_slowed_storage(one, 1.3),
}
# What a system reads ahead of clusters hangs on its estimates, which the plan keeps: up to 4 %.
RUNS = {
    "kvswap, from the host": ("decode", ["system=kvswap", *ON_NVME], 0.01),
    "kvswap": ("decode", ["system=kvswap", "device=jetson-agx-orin-sparkv", *ON_NVME], 0.01),
    "kvswap, slowed by computing": (
        "kvswap/throughput",
        ["device=jetson-agx-orin-sparkv", "device.storage=emmc", "workload.context=4096"],
        0.01,
    ),
    "flexgen": ("decode", ["system=flexgen", *ON_NVME], 0.01),
    "shadowkv": ("decode", ["system=shadowkv", *ON_NVME], 0.01),
    "dynakv": ("decode", ["system=dynakv", *ON_NVME], 0.04),
    "dynakv on a phone": (
        "dynakv/latency",
        ["device=snapdragon-8-gen-3", "device.storage=ufs-4.0", "workload.output=256", "workload.decoded=16"],
        0.01,
    ),
}


@cache
def ran(case: str) -> tuple[Scenario, Run]:
    name, settings, _ = RUNS[case]
    scenario = load_scenario(name, settings)
    return scenario, run_scenario(scenario)


@pytest.mark.parametrize("case", RUNS)
def test_it_comes_to_what_a_run_there_does(case: str) -> None:
    (scenario, run), (*_, tolerance) = ran(case), RUNS[case]
    elsewhere = Elsewhere(scenario, run)
    for what, changed in ENDS.items():
        there = changed(scenario)
        found = elsewhere.run(there)
        assert found is not None
        ours, really = metrics_for(there, found), metrics_for(there, run_scenario(there))
        for key in ("tpot_s", "ttft_s", "end_to_end_tokens_per_s", "decode_tokens_per_s"):
            assert ours[key] == pytest.approx(really[key], rel=tolerance), (what, key)


@pytest.mark.parametrize("case", RUNS)
def test_noted_steps_come_to_what_they_took(case: str) -> None:
    scenario, run = ran(case)
    decoded = run.decoded
    assert decoded is not None and decoded.noted is not None
    plan = plan_for(scenario, DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values))
    queues = QueueWork(on_runtime(scenario).device, scenario.model, scenario.costs.truth)
    _, ours_s = Replay(decoded.noted, plan, scenario.device.storage).seconds(queues)
    times_s = decoded.carried_out_s
    assert times_s is not None
    first, behind = noted_steps(len(times_s) - 1)
    # What the step before the first one left under way is not in it.
    assert ours_s == pytest.approx(times_s[behind] - times_s[first], rel=0.02 if "dynakv" in case else 0.005)


def test_on_its_own_device_nothing_changes() -> None:
    scenario, run = ran("kvswap, from the host")
    found = Elsewhere(scenario, run).run(scenario)
    assert found is not None
    assert metrics_for(scenario, found) == pytest.approx(metrics_for(scenario, run), rel=1e-12)


def test_where_the_plan_is_another_one_it_has_to_be_run() -> None:
    """Without a search among slots, KVSwap keeps more of them."""
    scenario, run = ran("kvswap, from the host")
    elsewhere = Elsewhere(scenario, run)
    (ideal,) = (one for one in others(scenario) if one.runtime is not None and one.runtime.name == "ideal")
    assert elsewhere.run(ideal) is None


def test_a_few_steps_are_noted_of_a_run_and_none_changes_by_it() -> None:
    decoded = ran("kvswap, from the host")[1].decoded
    assert decoded is not None and decoded.noted is not None
    waited = [entry for entry in decoded.noted.steps.entries if isinstance(entry.work, Op) and entry.awaited]
    heads = [entry for entry in waited if type(entry.work).__name__ == "OutputHead"]
    assert len(heads) == NOTED_STEPS
    assert all(max(entry.after, default=-1) < n for n, entry in enumerate(decoded.noted.steps.entries))


def test_first_tokens_stretch_all_by_hand() -> None:
    """Prefill takes twice as long there, a step half as long."""
    before = run_scenario(load_scenario("offload", ["workload.output=4"]))
    (own,) = before.requests
    before = replace(
        before, duration_s=16.0, requests=(replace(own, loaded_s=10.0, token_times_s=(10.0, 12.0, 14.0, 16.0)),)
    )
    first = replace(before, requests=(replace(own, token_times_s=(20.0, 21.0)),))
    there = as_first_tokens(before, first)
    assert there.requests[0].token_times_s == (20.0, 21.0, 22.0, 23.0)
    assert (there.requests[0].loaded_s, there.duration_s) == (20.0, 23.0)


def test_requests_that_come_at_other_times_are_not_together() -> None:
    lengths = "workload.lengths=[{output: 4}, {output: 8}]"
    assert not together(run_scenario(load_scenario("offload", [lengths, "workload.batch=2"])))
    assert together(run_scenario(load_scenario("offload", ["workload.output=4", "workload.batch=2"])))


@pytest.mark.parametrize("to", ["cpu", "host", "storage"])
@pytest.mark.parametrize("slower", [{"decoding": 1.3}, {"prefill": 0.6}, {"decoding": 0.8, "processor": "cpu"}])
def test_intervals_of_weights_elsewhere_are_those_of_whole_runs(to: str, slower: dict[str, Any]) -> None:
    scenario = load_scenario("offload", [f"budget.offload.to={to}", "device.storage=nvme"])
    before, other = run_scenario(scenario), slowed(scenario, **slower)
    layers = offload_of(scenario)
    assert layers is not None
    few = load_scenario(
        "offload",
        [f"budget.offload={{to: {to}, layers: {layers.layers}}}", "device.storage=nvme", "workload.output=4"],
    )
    there = as_first_tokens(before, run_scenario(slowed(few, **slower)))
    ours, run = metrics_for(scenario, there), metrics_for(other, run_scenario(other))
    for key in ("ttft_s", "tpot_s", "tpot_p99_s", "decode_tokens_per_s", "end_to_end_tokens_per_s"):
        assert ours[key] == pytest.approx(run[key], rel=2e-3), key
