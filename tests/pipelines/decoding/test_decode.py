"""Decoding with KV on storage: a few steps followed by hand, every system, what cannot be done."""

import math
from statistics import mean
from typing import Any

import pytest
from decoding import buffer_bytes, metadata_bytes, roles_of
from fake_machine import FakeMachine
from tiny import DECODING as TINY
from tiny import unit_model

from kvferry.analysis.metrics import metrics_for, metrics_of
from kvferry.machine.machine import Machine
from kvferry.machine.ops import DecodeAttention, Select
from kvferry.pipelines.decoding.budget import free_bytes
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.runtimes import on_runtime
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.run import run_scenario
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.policies.decode.spans import Spans
from kvferry.scenarios.loader import load_model, load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# One byte per number: an entry is 2 B, and so is a block.
MODEL = unit_model(kv_value_bytes=1.0)
REUSING = ("kvswap", "infinigen-star-ru", "dynakv", "specontext")


def figures_of(scenario: Scenario) -> dict[str, float]:
    return metrics_for(scenario, run_scenario(scenario))


def plan(system: str = "kvswap", **policies: Any) -> DecodePlan:
    given = {"group_tokens": 1, **policies}
    if system != "flexgen":
        given = {"selected_tokens": 2, **given}
    if system == "kvswap":
        given = {"reuse": False, **given}
    roles = roles_of(system, **given)
    return plan_of(roles, MODEL, sequences=1, context=4, output=4, budget_bytes=1e9, alignment_bytes=2)


def token_times_s(chosen: DecodePlan, steps: int) -> list[float]:
    """Every op takes a second, storage moves a byte per second."""
    machine: Machine = FakeMachine()
    decode = LockStepDecode(machine, chosen)
    machine.env.run(until=machine.env.process(decode.run(steps)))
    return decode.record.token_times_s


def test_two_steps_by_hand() -> None:
    # Prefill: layers end at 1 and 2; their 8 B each are written from 1 to 9 and 17; the head ends at 3.
    # First token at 17. Step: select 18, book 19, read 4 B 23; select 24 and book 25 of layer 1, read 29;
    # attention 26, rest 27; attention 30, rest 31; head 32. Then 4 B of the new token are written until 36.
    # Next step: select 33, book 34, read behind the write 40; select 41, book 42, read 46; attention 43, rest 44;
    # attention 47, rest 48, head 49.
    assert token_times_s(plan(), 3) == [17.0, 32.0, 49.0]


def test_reads_that_wait_for_their_own_query_by_hand() -> None:
    # Select 18, book 19, read 23, attention 24, rest 25; select 26, book 27, read 31, attention 32, rest 33, head 34.
    assert token_times_s(plan(ahead=False), 2) == [17.0, 34.0]


def test_everything_read_back_by_hand() -> None:
    # No selection: 8 B per layer, the next layer's behind the first's: 25 and 33; layer 0 26 and 27; layer 1 34 and 35,
    # head 36.
    assert token_times_s(plan("flexgen"), 2) == [17.0, 36.0]


def test_a_full_buffer_reads_nothing_by_hand() -> None:
    # Both groups are selected: the first step reads 8 B per layer, the second none.
    chosen = plan(group_tokens=2, selected_tokens=4, reuse=True, slots=2)
    # Select 18, book 19, read 27; select 28, book 29, read 37; attention 30, rest 31; attention 38, rest 39; head 40.
    # Select 41, book 42, nothing to read; select 43, book 44; attention 45, rest 46; attention 47, rest 48; head 49.
    assert token_times_s(chosen, 3) == [17.0, 40.0, 49.0]


def test_keys_are_rebuilt_while_values_are_read_by_hand() -> None:
    # Prefill: layer 1, decomposed 2, layer 3, decomposed 4, head 5; written from 1 to 9 and 17.
    # Select 18, book 19; 4 B read until 23, keys rebuilt until 20; attention 24, rest 25. Select 26, book 27, read 31,
    # attention 32, rest 33, head 34.
    chosen = plan(layout={"name": "value-groups", "compression": 32}, ahead=False)
    assert token_times_s(chosen, 2) == [17.0, 34.0]


class Noting(FakeMachine):
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def submit(self, op: Any, **how: Any) -> Any:
        self.ops.append(op)
        return super().submit(op, **how)


def noted(chosen: DecodePlan, steps: int, kind: type) -> list[Any]:
    machine = Noting()
    machine.env.run(until=machine.env.process(LockStepDecode(machine, chosen).run(steps)))
    return [op for op in machine.ops if isinstance(op, kind)]


def test_what_was_decoded_is_attended_by_hand() -> None:
    # Four tokens in two groups, of which both are read. Step 0: they and the new one. Step 1: one waits in memory.
    # Step 2: it is stored with the next as a third group. Step 3: one waits again.
    steps = noted(plan("flexgen", group_tokens=2), 5, DecodeAttention)[::2]
    assert [op.attended_tokens for op in steps] == [5, 6, 7, 8]


def test_what_was_decoded_is_scored_by_hand() -> None:
    # One group of two is selected, of two groups and then of three.
    chosen = plan(group_tokens=2, selected_tokens=2)
    steps = noted(chosen, 4, Select)[::2]
    assert [(op.groups, op.keys) for op in steps] == [(2, 4), (2, 4), (3, 6)]
    assert [op.attended_tokens for op in noted(chosen, 4, DecodeAttention)[::2]] == [3, 4, 3]
    landmarks = noted(plan("shadowkv", group_tokens=2), 4, Select)[::2]
    assert [op.keys for op in landmarks] == [2, 2, 3]


def test_memory_counts_the_output_by_hand() -> None:
    # Room for 4 + 4 tokens of two layers; compressed keys of one byte.
    assert metadata_bytes(plan()) == 2 * 8
    # Two layers' keys and values of all tokens, 2 B each.
    assert buffer_bytes(plan("flexgen")) == 2 * 8 * 2
    # 4 + 4 tokens in groups of 3 are 9. Landmarks: a key per group, beside the keys that others are rebuilt from.
    assert metadata_bytes(plan(group_tokens=3)) == 2 * 9
    assert metadata_bytes(plan("shadowkv", group_tokens=3)) == 2 * 9 + 2 * 3


@pytest.mark.parametrize("system", DECODE_SYSTEMS)
def test_every_system_decodes(system: str) -> None:
    # A budget of the paper's would be the whole context, and what leaves the processor's memory needs another.
    host = {"unified": False, "copy_bytes_per_s": "200 MB/s", "host_capacity_bytes": "1 GB"}
    apart = {"policies": {"selected_tokens": 64}, "device": TINY["device"] | {"memory": host}}
    scenario = load_scenario({**TINY, "system": system, **(apart if system == "specontext" else {})})
    run = run_scenario(scenario)
    assert run.outcome == "done", run.why
    metrics = metrics_of(run, main_processor="gpu", measure="decode")
    assert metrics["throughput_tokens_per_s"] == pytest.approx(2 / metrics["tpot_s"], rel=1e-9)
    assert metrics["requests_finished"] == 2
    if not DECODE_SYSTEMS[system].roles.all_in_memory and system != "specontext":
        # The whole context is written, and read from.
        written = 2 * 1024 * scenario.model.kv_bytes_per_token / (2 if system == "shadowkv" else 1)
        assert metrics["write_bytes"] >= written
        assert metrics["read_bytes"] > 0
    assert ("reuse_rate" in metrics) == (system in REUSING)


def test_equal_scenarios_give_equal_runs() -> None:
    first, second = (run_scenario(load_scenario(TINY)) for _ in range(2))
    assert metrics_for(load_scenario(TINY), first) == metrics_for(load_scenario(TINY), second)
    assert first.spans == second.spans


def test_a_part_of_the_steps_tells_of_all() -> None:
    # 20 of 256 groups and 100 slots: the buffer is full after some twenty steps.
    policies = {"group_tokens": 4, "selected_tokens": 80, "slots": 100}
    whole = {**TINY, "policies": policies, "workload": {**TINY["workload"], "output": 200}}
    part = {**whole, "workload": {**whole["workload"], "decoded": 60}}
    # What 60 steps select is a sample of what 200 do: judged by the mean over several seeds.
    full, short = (
        [figures_of(load_scenario({**scenario, "seed": seed})) for seed in range(5)] for scenario in (whole, part)
    )
    assert short[0]["tokens_decoded"] == 60
    rates = [mean(found["throughput_tokens_per_s"] for found in each) for each in (short, full)]
    assert rates[0] == pytest.approx(rates[1], rel=0.05)


def test_as_many_tokens_are_decoded_as_the_scenario_says() -> None:
    workload = {**TINY["workload"], "output": 40, "decoded": 20}
    scenario = load_scenario({**TINY, "policies": {"reuse": False}, "workload": workload})
    assert figures_of(scenario)["tokens_decoded"] == 20


@pytest.mark.parametrize("system", ["kvswap", "infinigen-star", "shadowkv", "flexgen", "os-paging"])
@pytest.mark.parametrize("storage", ["nvme", "emmc"])
def test_delays_without_events_are_those_with(system: str, storage: str) -> None:
    settings = [f"system={system}", f"device.storage={storage}", "workload.batch=2", "workload.decoded=30"]
    scenario = load_scenario("kvswap/throughput", [*settings, "workload.context=8Ki", "workload.output=31"])
    figures = figures_of(scenario)
    composed = DECODE_SYSTEMS[system].with_policies(scenario.policy_values)
    chosen = plan_for(scenario, composed)
    device = on_runtime(scenario, composed).device
    told_s = Delays(device, scenario.model).step_s(chosen, figures.get("reuse_rate", 0.0))
    assert figures["tpot_s"] == pytest.approx(told_s, rel=0.12)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"policies": {"group_tokens": 2000}}, "a group of 2,000 tokens is longer than the context of 1,024"),
        (
            {"budget": {"kv_share": 0.001}},
            r"budget.kv_share: 524 B per sequence hold no selection of 4 groups of 128 tokens; 205.9 kB would \(a full"
            r" cache takes 524.3 kB\)",
        ),
        ({"budget": {"kv": "1 kB"}}, "budget.kv: 500 B per sequence hold no selection"),
        ({"policies": {"slots": 6}, "budget": {"kv": "1 kB"}}, r"of 128 tokens in 6 slots \(policies\.slots\); "),
        (
            {"workload": {**TINY["workload"], "context": 1}, "budget": {"kv_share": 0.001}},
            "hold no selection of 1 group of 1 token; ",
        ),
        ({"policies": {"slots": -5}}, "a reuse buffer has 1 slot or more, or 0 for no reuse, not -5"),
        ({"system": "sparkv"}, "'sparkv' is a system for workload kind context-reuse"),
        ({"policies": {"sigma": 3}}, "sigma"),
    ],
)
def test_what_cannot_be_run_is_said(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        run_scenario(load_scenario({**TINY, **changes}))


def test_the_smallest_budget_that_works_works() -> None:
    with pytest.raises(InputError) as error:
        run_scenario(load_scenario({**TINY, "budget": {"kv": "1 kB"}}))
    least = float(str(error.value).split(";")[1].split(" kB would")[0])
    # Rounded to a tenth of a kB, for one of two sequences.
    assert run_scenario(load_scenario({**TINY, "budget": {"kv": f"{2 * least} kB"}})).outcome == "done"
    with pytest.raises(InputError, match="hold no selection"):
        run_scenario(load_scenario({**TINY, "budget": {"kv": f"{2 * (least - 0.1)} kB"}}))


def test_kv_blocks_lie_on_whole_blocks_of_the_storage() -> None:
    device = {**TINY["device"], "storage": {**TINY["device"]["storage"], "block_bytes": "4 KiB"}}
    system = DECODE_SYSTEMS["kvswap"].with_policies({"group_tokens": 12})
    usual, large = (plan_for(load_scenario({**TINY, "device": each}), system) for each in (TINY["device"], device))
    # Twelve entries of 128 B.
    assert (usual.layout.block_bytes, usual.layout.stride_bytes) == (1536, 1536)
    assert large.layout.stride_bytes == 4096


@pytest.mark.parametrize("size", ["1000 B", "1.5 KiB", "513 B"])
def test_a_misaligned_block_size_is_reported(size: str) -> None:
    device = {**TINY["device"], "storage": {**TINY["device"]["storage"], "block_bytes": size}}
    with pytest.raises(InputError, match=r"block_bytes: block size .* no power of two; 512 B or 4 KiB would do"):
        load_scenario({**TINY, "device": device})


def test_a_full_storage_is_an_outcome() -> None:
    device = {**TINY["device"], "storage": {**TINY["device"]["storage"], "capacity_bytes": "100 kB"}}
    run = run_scenario(load_scenario({**TINY, "device": device}))
    assert (run.outcome, run.requests) == ("infeasible", ())
    assert "of storage" in run.why


def test_memory_too_small_for_one_sequence_is_an_outcome() -> None:
    run = run_scenario(load_scenario({**TINY, "system": "vllm", "budget": {"in_memory_kv": "100 kB"}}))
    assert run.outcome == "out_of_memory"


def test_as_many_sequences_as_a_total_budget_holds() -> None:
    share = load_scenario({**TINY, "budget": {"kv_share": 0.5}})
    each = plan_for(share, DECODE_SYSTEMS["kvswap"]).memory.sequence_bytes
    budget = {"kv_share": 0.5, "kv": f"{3.5 * each} B"}
    most, nine = (
        load_scenario({**TINY, "workload": {**TINY["workload"], "batch": batch}, "budget": budget})
        for batch in ("max", 9)
    )
    assert plan_for(most, DECODE_SYSTEMS["kvswap"]).sequences == 3
    assert figures_of(most)["batch"] == 3
    with pytest.raises(InputError, match=r"budget.kv: .* hold 3 sequences .* asks for 9; batch: max takes as many"):
        plan_for(nine, DECODE_SYSTEMS["kvswap"])
    alone = load_scenario({**TINY, "workload": {**TINY["workload"], "batch": "max"}, "budget": {"kv": "2 MiB"}})
    with pytest.raises(InputError, match="max needs budget.kv_share"):
        plan_for(alone, DECODE_SYSTEMS["kvswap"])


@pytest.mark.parametrize(
    ("batch", "budget"),
    [("max", {"kv_share": 0.5}), ("max", {"kv": "2 MiB"}), (4, {"kv_share": 0.5, "kv": "2 MiB"})],
)
@pytest.mark.parametrize("placement", [{"name": "progressive", "overflow": "storage"}, "all-or-nothing"])
def test_kv_in_memory_stays_within_the_budget_of_a_whole_batch(
    placement: Any, batch: int | str, budget: dict[str, Any]
) -> None:
    workload = {**TINY["workload"], "batch": batch}
    changes = {"system": "flexgen", "workload": workload, "budget": budget, "policies": {"placement": placement}}
    scenario = load_scenario({**TINY, **changes})
    chosen = plan_for(scenario, DECODE_SYSTEMS["flexgen"].with_policies(scenario.policy_values))
    whole_bytes = min(
        2 * 2**20 if "kv" in budget else free_bytes(scenario, chosen.roles),
        0.5 * chosen.sequences * scenario.model.kv_full_bytes(1024) if "kv_share" in budget else math.inf,
    )
    assert chosen.sequences * chosen.managed.budget_bytes == pytest.approx(whole_bytes)
    assert "storage" in chosen.tiers
    assert run_scenario(scenario).outcome == "done"


def test_the_largest_batch_in_memory_fills_the_pool_with_pages() -> None:
    # 1,024 + 12 tokens take 65 pages of 16 tokens each.
    each = 65 * 16 * load_model("tiny").kv_bytes_per_token
    workload = {**TINY["workload"], "batch": "max"}
    budget = {"in_memory_kv": f"{2.5 * each} B"}
    scenario = load_scenario({**TINY, "system": "vllm", "workload": workload, "budget": budget})
    assert figures_of(scenario)["batch"] == 2


def test_metadata_and_buffers_are_reserved() -> None:
    scenario = load_scenario(TINY)
    run = run_scenario(scenario)
    chosen = plan_for(scenario, DECODE_SYSTEMS["kvswap"])
    assert run.kv_memory_peak_bytes == pytest.approx(2 * chosen.memory.sequence_bytes, abs=2)
    assert chosen.memory.sequence_bytes <= 0.9 * 1024 * scenario.model.kv_bytes_per_token


def test_a_selection_of_all_reads_what_is_decoded_too() -> None:
    given = {**TINY, "workload": {**TINY["workload"], "context": 300}, "budget": {"kv_share": None}}
    read = {
        system: figures_of(load_scenario({**given, "system": system, "policies": policies}))["read_bytes"]
        for system, policies in (("flexgen", {}), ("infinigen-star", {"selected_tokens": 312}))
    }
    assert read["infinigen-star"] == read["flexgen"]


def test_every_system_has_one_kind() -> None:
    assert not set(WORKLOADS["context-reuse"].systems) & set(WORKLOADS["decode"].systems)


def test_whole_blocks_of_a_beginning() -> None:
    # A context of 4 tokens: two blocks of two.
    found = plan("kvswap", group_tokens=2)
    assert [found.blocks_of(Spans.first(tokens)) for tokens in (0, 1, 2, 3)] == [[], [], [(0, 1)], [(0, 1)]]
    assert found.blocks_of(Spans.first(10**6)) == [(0, found.choice.blocks)]
