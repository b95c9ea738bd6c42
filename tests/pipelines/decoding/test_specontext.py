"""SpeContext's system in the modelled world: what moves, what memory holds, and where it ends."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from decoding import roles_of
from fake_machine import FakeMachine
from tiny import DECODING as TINY
from tiny import unit_model

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.budget import free_bytes
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.placement import Progressive
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

DEVICE = {
    "extends": "rtx-5080-laptop",
    "memory": {
        "unified": False,
        "capacity_bytes": "1 GB",
        "reserved_bytes": "0 B",
        "bytes_per_s": "896 GB/s",
        "copy_bytes_per_s": "1 GB/s",
        "host_capacity_bytes": "1 GB",
    },
}


def run(**changes: Any) -> tuple[Run, dict[str, float]]:
    policies = {"selected_tokens": 64, "runtime_share": 0.0} | changes.pop("policies", {})
    wanted = {**TINY, "system": "specontext", "device": DEVICE, "policies": policies, "budget": {}, **changes}
    scenario = load_scenario(wanted)
    found = run_scenario(scenario)
    return found, metrics_for(scenario, found)


def copied_bytes(found: Run) -> float:
    return found.tally.bytes_of("copy")


def test_elastic_loading_moves_less_than_a_full_reload() -> None:
    away = {"placement": "host"}
    elastic, figures = run(policies=away)
    full, _ = run(policies=away | {"residency": "none"})
    # What prefill and new tokens write out is the same.
    selected = 1 - figures["reuse_rate"]
    scenario = load_scenario({**TINY, "system": "specontext", "device": DEVICE, "budget": {}})
    steps, written = TINY["workload"]["output"] - 1, copied_bytes(full)
    reloaded = steps * 2 * scenario.model.layers * 64 * scenario.model.kv_entry_bytes
    assert copied_bytes(elastic) == pytest.approx(written - reloaded * (1 - selected), rel=1e-6)
    assert selected < 1


def test_specontexts_own_reserve_is_held_for_it_alone() -> None:
    def held_share(system: str) -> float:
        scenario = load_scenario("specontext/throughput", [f"system={system}"])
        roles = DECODE_SYSTEMS[system].with_policies(scenario.policy_values).roles
        memory, weights = scenario.device.memory, scenario.model.weight_bytes
        return (memory.free_bytes - scenario.device.runtime_bytes - weights - free_bytes(scenario, roles)) / weights

    # Eq. 6: 30 % of the weights, of which activations, logits and the margin are a part.
    assert held_share("specontext") == pytest.approx(0.3, abs=1e-6)
    for system in ("shadowkv", "quest", "full-eager", "full-flashinfer"):
        assert 0.1 < held_share(system) < 0.2, system


def test_kv_that_will_not_fit_is_out_of_memory_before_prefill() -> None:
    tiny_host = {**DEVICE, "memory": {**DEVICE["memory"], "host_capacity_bytes": "100 kB"}}
    found, _ = run(device=tiny_host, policies={"placement": "host"})
    assert found.outcome == "out_of_memory"
    assert found.why.startswith("the host's memory lacks ")
    assert "for the KV of 2 sequences of 1,0" in found.why
    assert not found.spans


def test_a_budget_that_holds_no_selection_is_too_small() -> None:
    found, _ = run(budget={"kv": "100 kB"})
    assert found.outcome == "out_of_memory"
    assert found.why.startswith("the budget lacks ")
    would = re.search(r"; budget.kv of ([\d,]+) KiB for all would", found.why)
    assert would
    least = int(would[1].replace(",", ""))
    assert run(budget={"kv": f"{least} KiB"})[0].outcome == "done"
    assert run(budget={"kv": f"{least - 2} KiB"})[0].outcome == "out_of_memory"


def test_a_budget_over_the_context_is_refused() -> None:
    """The prompt and what follows it have 1,036 tokens."""
    found = (
        "policies.selected_tokens: 1,037 is more than the 1,036 tokens that there will ever be; 1,036 would select all"
    )
    with pytest.raises(InputError, match=re.escape(found)):
        run(policies={"selected_tokens": 1037})
    inner = {"name": "retrieval-head", "selected_tokens": 5000}
    with pytest.raises(InputError, match=r"policies\.selector\.selected_tokens: 5,000 is more than"):
        run(policies={"selector": inner})


def test_a_budget_of_the_whole_context_selects_all_and_says_so() -> None:
    found, _ = run(policies={"selected_tokens": 1036})
    assert found.outcome == "done"
    assert any(note.startswith("nothing is left out") for note in found.notes)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="policies.selected_tokens: 0: must be at least 1"):
        run(policies={"selected_tokens": 0})


def test_the_largest_batch_is_what_device_and_host_hold() -> None:
    small = {**DEVICE, "memory": {**DEVICE["memory"], "host_capacity_bytes": "5 MB"}}
    wanted = {**TINY, "system": "specontext", "device": small, "budget": {}, "policies": {"selected_tokens": 64}}
    wanted |= {"policies": {"selected_tokens": 64, "placement": "host"}}
    scenario = load_scenario({**wanted, "workload": {**TINY["workload"], "batch": "max"}})
    plan = plan_for(scenario, DECODE_SYSTEMS["specontext"].with_policies(scenario.policy_values))
    # All KV of a sequence lies in the host's memory.
    each_bytes = (plan.context + plan.output) * scenario.model.kv_bytes_per_token
    assert plan.sequences == 5e6 // each_bytes
    assert run_scenario(scenario).outcome == "done"
    more = load_scenario({**wanted, "workload": {**TINY["workload"], "batch": plan.sequences + 1}})
    assert run_scenario(more).outcome == "out_of_memory"


def test_windows_tell_of_an_output_during_which_layers_move_away() -> None:
    model = load_scenario({**TINY, "device": DEVICE}).model
    # At the beginning all layers are near, at the end none.
    budget = {"kv": f"{2 * 1.3 * 1024 * (model.layers + 3) * model.kv_entry_bytes} B"}
    workload = {**TINY["workload"], "output": 1600}
    all_of_it, whole = run(budget=budget, workload=workload)
    found, part = run(budget=budget, workload={**workload, "decoded": 129, "part": "spread"})
    assert whole["reuse_rate"] == pytest.approx(part["reuse_rate"], abs=0.02)
    for name in ("tpot_s", "throughput_tokens_per_s"):
        assert part[name] == pytest.approx(whole[name], rel=0.03), name
    # Memory is fullest at the end, where no window lies.
    assert found.memory_peak_bytes == all_of_it.memory_peak_bytes
    assert found.kv_memory_peak_bytes == all_of_it.kv_memory_peak_bytes


def test_each_layer_moves_once_wherever_windows_lie_by_hand() -> None:
    """Layer 2 of 2 leaves at 7 tokens, among those that are skipped, layer 1 at 12, before the last counted step."""
    packed = TokenGroups(group_tokens=1, packed=True)
    roles = replace(roles_of("flexgen"), layout=packed, placement=Progressive(thresholds=(6, 11)))
    model = unit_model(layers=2, kv_value_bytes=1.0)
    plan = plan_of(roles, model, sequences=1, context=4, output=20, budget_bytes=1e9)
    machine, moved = FakeMachine(bytes_per_s=0.5), list[tuple[bool, float, int]]()
    decode = LockStepDecode(
        machine, plan, on_move=lambda done: moved.append((done, machine.env.now, decode.now.tokens_stored))
    )
    # 4 tokens of the context, 4 skipped, 2 decoded, 1 skipped, 2 decoded, and 5 skipped to the last step.
    machine.env.run(until=machine.env.process(decode.run_parts([(4, 2), (1, 2), (5, 0)])))
    assert [(done, tokens) for done, _, tokens in moved] == [(False, 7), (True, 7), (False, 12), (True, 12)]
    # All the KV of a layer, by itself; the second behind the new token of the layer that was away already.
    seconds = [end - begin for (_, begin, _), (_, end, _) in pairwise(moved)][::2]
    assert seconds == [7 * model.kv_entry_bytes / 0.5, (1 + 12) * model.kv_entry_bytes / 0.5]
    assert decode.now.tokens_stored == 18
    assert set(decode.now.tiers) == {"host"}


def test_moves_take_as_much_in_windows_as_over_the_whole_output() -> None:
    model = load_scenario({**TINY, "device": DEVICE}).model
    moving = {"policies": {"placement": {"name": "progressive", "thresholds": [1100, 1101, 1700, 1701]}}}
    policies = moving["policies"] | {"selected_tokens": 64}
    workload = {**TINY["workload"], "output": 1600, "decoded": 49, "part": "spread"}
    found, figures = run(policies=policies, workload=workload)
    standing = policies | {"placement": {"name": "progressive", "thresholds": [0] * 4}}
    still, of_still = run(policies=standing, workload=workload)
    # The longest wait is for a move, and none of the decoded tokens is there.
    assert ["largest_gap_s" in one for one in (figures, of_still)] == [False, True]
    assert found.decoded is not None
    assert still.decoded is not None
    assert still.decoded.moves_s == 0
    # A layer's KV of two sequences at 1 GB/s, one after the other, at these lengths.
    bytes_moved = 2 * model.kv_entry_bytes * (1101 + 1102 + 1701 + 1702)
    assert found.decoded.moves_s == pytest.approx(bytes_moved / 1e9, rel=0.05)


def test_as_many_sequences_as_the_budget_holds() -> None:
    found = load_scenario("specontext/throughput", ["workload.batch=max", "budget.kv=10 GiB"])
    plan = plan_for(found, DECODE_SYSTEMS["specontext"].with_policies(found.policy_values))
    assert 1 < plan.sequences < 64
    assert plan.memory.over_bytes == 0
    assert plan.memory.ledger.n_bytes(plan.most_tokens) <= 10 * 2**30


def test_a_choice_that_is_drawn_needs_no_room_for_keys() -> None:
    """32 sequences of 18,432 tokens, whose keys would have more numbers than may be drawn."""
    assert run_scenario(load_scenario("specontext/throughput", ["workload.decoded=2"])).outcome == "done"


def test_kv_up_to_the_last_byte_finds_room() -> None:
    """With 6,945 tokens KV takes all that weights, intermediate values and the head leave; parts are rounded."""
    found = load_scenario("specontext/throughput", ["model=qwen3-8b", "workload.batch=max", "workload.decoded=8"])
    assert run_scenario(found).outcome == "done"


def test_on_unified_memory_the_host_takes_of_the_same_budget() -> None:
    # All KV lies on the host, which is the processor's own memory: index and slots need room beside it.
    workload, kv_bytes = TINY["workload"], load_scenario({**TINY, "device": DEVICE}).model.kv_full_bytes
    whole = workload["batch"] * kv_bytes(workload["context"] + workload["output"])
    one = DEVICE | {"memory": DEVICE["memory"] | {"unified": True}}
    policies = {"placement": "host", "residency": "none"}
    apart, _ = run(policies=policies, budget={"kv": f"{whole} B"})
    assert apart.outcome == "done"
    together, figures = run(device=one, policies=policies, budget={"kv": f"{whole} B"})
    assert together.outcome == "out_of_memory" and "kv (host, the same memory)" in together.why
    assert "kv_memory_peak_bytes" not in figures
    would = re.search(r"budget\.kv of ([\d,]+) KiB", together.why)
    assert would is not None
    most = int(would[1].replace(",", "")) * 2**10
    enough, figures = run(device=one, policies=policies, budget={"kv": f"{most} B"})
    assert enough.outcome == "done" and whole < figures["kv_memory_peak_bytes"] <= most
