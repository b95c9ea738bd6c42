"""Where memory goes in whole runs: every line by name, nothing twice, nothing left out, and no last byte."""

import re
from typing import Any

import pytest
from decoding import leaving
from tiny import TINY, tiny

from kvferry.pipelines.decoding.budget import fits
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

ON_A_BOARD = {"extends": "jetson-orin-nano-8gb", "storage": "nvme"}


def figures(scenario: Scenario) -> tuple[dict[str, float], float]:
    run = run_scenario(scenario)
    assert run.outcome == "done", run.why
    return dict(run.memory_at_peak), run.memory_peak_bytes


@pytest.mark.parametrize("kind", TINY)
def test_named_lines_make_up_the_peak_and_some_memory_stays_free(kind: str) -> None:
    scenario = tiny(TINY[kind], device=ON_A_BOARD, budget={"memory": "4 GB"})
    held, peak_bytes = figures(scenario)
    assert sum(held.values()) - held["kept free"] == peak_bytes
    assert held["kept free"] == pytest.approx(0.02 * 4e9)
    assert peak_bytes < 0.98 * 4e9
    assert {"weights", "runtime", "workspace: activations", "workspace: logits", "kv"} <= {
        name.partition(": reuse")[0].partition(": read")[0].partition(": new")[0] for name in held
    }


@pytest.mark.parametrize("system", DECODE_SYSTEMS)
def test_no_way_of_decoding_fills_a_board_to_the_last_byte(system: str) -> None:
    """Where KV takes all that a board leaves, activations and the margin are beside it."""
    policies = {"policies": {"selected_tokens": 64}} if system == "specontext" else {}
    scenario = tiny(TINY["decode"], system=system, device=ON_A_BOARD, budget={"kv_share": None}, **policies)
    held, peak_bytes = figures(scenario)
    granted_bytes = scenario.device.memory.free_bytes
    assert peak_bytes <= granted_bytes - held["kept free"]
    assert held["workspace: activations"] == 2048 * (2 * 64 + 3 * 128) * 2


def prepared(system: str, batch: int | str, **changes: Any) -> Scenario:
    """A prompt that is prepared once, and new tokens that stay beside it."""
    settings = [f"system={system}", f"workload.batch={batch}", *(f"{key}={value}" for key, value in changes.items())]
    return load_scenario("specontext/throughput", settings)


@pytest.mark.parametrize("system", ["quest", "clusterkv"])
def test_new_tokens_are_counted_once_by_hand(system: str) -> None:
    scenario = prepared(system, 8)
    plan = plan_for(scenario, DECODE_SYSTEMS[system].with_policies(scenario.policy_values))
    # 32 layers x 2 x 1,024 numbers of 2 B; a prompt of 2 Ki and an output of 16 Ki tokens.
    token_bytes = 32 * 4096
    held = plan.memory.ledger.at(plan.most_tokens)
    kv_bytes = held["kv"] + held["kv: new tokens"]
    # What makes no whole block of a prompt stays with the new tokens.
    assert kv_bytes == pytest.approx(8 * (2048 + 16384) * token_bytes, rel=0.005)


@pytest.mark.parametrize(("system", "most"), [("quest", 27), ("clusterkv", 26)])
def test_as_many_requests_fit_as_their_kv_allows(system: str, most: int) -> None:
    scenario = prepared(system, "max")
    plan = plan_for(scenario, DECODE_SYSTEMS[system].with_policies(scenario.policy_values))
    assert plan.sequences == most
    assert not fits(scenario, plan.together(most + 1).within(plan.managed.budget_bytes * most / (most + 1)))


def test_what_a_batch_lacks_is_said_with_what_would_do() -> None:
    run = run_scenario(prepared("quest", 40))
    assert run.outcome == "out_of_memory"
    assert "(weights 16.06 GB, kept free 1.70 GB, runtime 536.9 MB)" in run.why
    assert run.why.endswith("; workload.batch of 27 would do")


def test_kv_that_a_device_cannot_hold_is_told_with_the_largest_holdings() -> None:
    """All KV in the processor's memory, of a prompt that is chosen from: what is chosen by fits, its KV does not."""
    run = run_scenario(prepared("quest", 8, **{"workload.input": "128Ki"}))
    assert run.outcome == "out_of_memory"
    assert re.search(r"lacks .* GB for the KV of 8 sequences .*: kv 1.*, kv: new tokens 1.*, weights 1", run.why)
    assert run.why.endswith("; workload.batch of 3 would do")


def test_max_says_where_it_stops_before_memory_does() -> None:
    scenario = tiny(TINY["decode"], system="vllm", workload={"batch": "max", "output": 3}, budget={"kv_share": None})
    assert any("max takes 64 sequences at most" in note for note in run_scenario(scenario).notes)
    few = leaving(scenario, 3.5 * 65 * 16 * scenario.model.kv_bytes_per_token)
    assert run_scenario(few).notes == ()


def test_kv_on_its_way_to_storage_and_hidden_states_are_of_one_prompt_by_hand() -> None:
    held, _ = figures(tiny(TINY["decode"], budget={"kv_share": 0.9}))
    # 1,024 tokens of 64 numbers of 2 B, and two layers of 2 x 2 x 16 numbers of 2 B.
    assert held["workspace: hidden states"] == 1024 * 64 * 2
    assert held["workspace: KV on its way out"] == 2 * 1024 * 128


def test_a_long_prompt_fits_in_chunks_and_not_as_a_whole() -> None:
    """Of 32 Ki tokens, 3 x 8,192 numbers of each take 1.5 GiB beside the weights."""
    settings = ["system=full-flash", "workload.input=32Ki", "workload.output=2Ki", "workload.decoded=2"]
    assert run_scenario(load_scenario("specontext/edge", settings)).outcome == "done"
    whole = run_scenario(load_scenario("specontext/edge", [*settings, "budget.prefill_chunk=null"]))
    assert whole.outcome == "out_of_memory"
    assert "workspace: activations" in whole.why
