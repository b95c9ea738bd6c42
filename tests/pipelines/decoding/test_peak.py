"""Memory of decoding with all KV in memory: pages, scores of prompts and copies of a layer, by hand and as outcomes."""

from typing import Any

import pytest
from decoding import leaving, roles_of
from fake_machine import FakeMachine
from tiny import DECODING, tiny, tiny_model

from kvferry.analysis.figures import FIGURES
from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.continuous import ContinuousDecode
from kvferry.pipelines.decoding.passes import Passes
from kvferry.pipelines.decoding.peak import Peak
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.attention_kernel import EAGER, FLASH, PAGED
from kvferry.policies.decode.batcher import Batcher, Turn
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.request import Request

# A token's KV: 2 layers x 2 x 2 heads x 8 numbers x 2 B = 128 B, half of it in a layer. Two query heads to a KV head.
MODEL = tiny_model()
PAGE_BYTES = 16 * 128


def test_what_kernels_need_by_hand() -> None:
    # 4 query heads x 10 x 10 scores x 8 B, of three prompts; of 20 tokens a layer's KV joined, and repeated twice.
    assert EAGER.prefill_bytes(MODEL, 3, 10) == 3 * 4 * 100 * 8
    assert EAGER.decode_bytes(MODEL, 20) == (1 + 2) * 20 * 64
    assert (FLASH.prefill_bytes(MODEL, 3, 10), FLASH.decode_bytes(MODEL, 20)) == (0, 20 * 64)
    assert (PAGED.prefill_bytes(MODEL, 3, 10), PAGED.decode_bytes(MODEL, 20)) == (0, 0)
    assert (EAGER.needs_memory, FLASH.needs_memory, PAGED.needs_memory) == (True, True, False)


def test_a_batch_peaks_where_its_prompts_end_or_its_output_by_hand() -> None:
    peak = Peak(roles_of("full-eager"), MODEL)
    # Two prompts of 32 tokens, two pages each, and 2 x 4 x 32 x 32 scores of 8 B: more than the end's 3 pages each and
    # three layers' copies of 2 x 48 tokens.
    assert peak.batch_bytes(2, Request(0.0, 32, 16)) == 4 * PAGE_BYTES + 2 * 4 * 32**2 * 8
    # A prompt of 2 tokens, and 46 decoded behind it: the end.
    assert peak.batch_bytes(2, Request(0.0, 2, 46)) == 6 * PAGE_BYTES + 3 * 2 * 48 * 64
    # One prompt at a time: scores of one.
    alone = Peak(roles_of("full-eager", prefill_tokens=32), MODEL)
    assert alone.batch_bytes(2, Request(0.0, 32, 16)) == 4 * PAGE_BYTES + 4 * 32**2 * 8
    two = Peak(roles_of("full-eager", prefill_tokens=64), MODEL)
    assert two.batch_bytes(3, Request(0.0, 32, 16)) == 6 * PAGE_BYTES + 2 * 4 * 32**2 * 8
    assert peak.sequences_within(2 * (2 * PAGE_BYTES + 4 * 32**2 * 8), Request(0.0, 32, 16)) == 2
    assert peak.sequences_within(2 * PAGE_BYTES + 4 * 32**2 * 8 - 1, Request(0.0, 32, 16)) == 0


def test_turns_need_what_passes_a_layer_together_by_hand() -> None:
    peak = Peak(roles_of("full-eager"), MODEL)
    # Two prompts of 8 tokens pass a layer together, then one of 10.
    assert peak.turn_bytes(Turn("prefill", (0, 1, 2), (8, 8, 10), ())) == 2 * 4 * 64 * 8
    assert peak.turn_bytes(Turn("decode", (0, 1), (8, 12), ())) == 3 * 20 * 64


def test_a_turn_takes_its_memory_while_it_lasts() -> None:
    peak, requests = Peak(roles_of("full-eager"), MODEL), (Request(0.0, 8, 3), Request(0.0, 8, 2))
    machine = FakeMachine(capacity_bytes=1e6)
    decode = ContinuousDecode(
        machine,
        Passes(machine, 2, EAGER),
        requests,
        Batcher(9, 2),
        page_bytes=PAGE_BYTES,
        workspace_bytes=peak.turn_bytes,
    )
    machine.env.run(until=machine.env.process(decode.run()))
    # 2 x 4 x 8 x 8 scores of 8 B; then copies of 9 and 9 tokens.
    assert machine.memory.peak_of("workspace") == max(2 * 4 * 64 * 8, 3 * 18 * 64)
    assert machine.memory.used_bytes == 0


def test_a_window_takes_as_many_pages_as_it_has_and_is_all_that_is_attended_to() -> None:
    # Sinks and window hold 5 tokens: a page, whatever is decoded; a batcher of all would need two.
    kept = roles_of("streaming-llm", window_tokens=3, sink_tokens=2).selector.kept_tokens
    assert [kept(n) for n in (1, 5, 6, 100)] == [1, 5, 5, 5]
    batcher = Batcher(1, 1, kept=kept)
    batcher.arrive(0, 30, 3)
    prefill = batcher.turn()
    assert prefill is not None
    assert (prefill.kind, prefill.tokens) == ("prefill", (30,))
    batcher.done(prefill)
    decode = batcher.turn()
    assert decode is not None
    assert (decode.tokens, batcher.pages.free_pages) == ((5,), 0)
    with pytest.raises(ValueError, match="33 tokens do not fit 1 page"):
        Batcher(1, 1).arrive(0, 30, 3)


def in_memory(system: str, kv_bytes: float, **changes: Any) -> Scenario:
    """So much memory beside weights and workspace."""
    scenario = tiny(DECODING, system=system, model=MODEL.model_dump(), budget={"kv_share": None}, **changes)
    return leaving(scenario, kv_bytes)


def test_eager_prefill_runs_out_of_memory_where_other_kernels_do_not() -> None:
    """64 prompts of 1,024 tokens: scores of one prompt take 32 MiB, its KV 130 KiB."""
    workload = {"context": 1024, "output": 8, "batch": "max"}
    runs = {name: run_scenario(in_memory(name, 2**24, workload=workload)) for name in ("full-eager", "full-flash")}
    assert {name: run.outcome for name, run in runs.items()} == {"full-eager": "out_of_memory", "full-flash": "done"}
    assert "with what its attention needs takes 33.7 MB, 16.8 MB are there for it" in runs["full-eager"].why


def test_as_many_decode_together_as_attention_has_memory_for_and_the_rest_waits() -> None:
    # Each takes 32 MiB of scores and 128 KiB of KV at the end of its prompt: three fit 100 MiB.
    workload = {"context": 1024, "output": 8}
    most = in_memory("full-eager", 100 * 2**20, workload={**workload, "batch": "max"})
    asked = in_memory("full-eager", 100 * 2**20, workload={**workload, "batch": 5})
    runs = [run_scenario(scenario) for scenario in (most, asked)]
    figures = [metrics_for(scenario, run) for scenario, run in zip((most, asked), runs, strict=True)]
    assert [one["requests_finished"] for one in figures] == [3, 5]
    assert figures[0]["batch"] == 3
    # Three, then the other two: the mean is no batch that there was, and it is said.
    assert figures[1]["batch"] == 2.5
    assert FIGURES["batch"].label == "sequences together, mean"
    said = "3 of 5 sequences fit at once; the others decoded after them (none waits with workload.batch=3)"
    assert [run.notes for run in runs] == [(), (said,)]


def test_requests_that_come_one_by_one_are_no_batch_that_did_not_fit() -> None:
    workload = {"context": 1024, "output": 8, "batch": 5, "requests": 5, "arrivals": {"rate": "1 requests/hour"}}
    assert run_scenario(in_memory("full-eager", 100 * 2**20, workload=workload)).notes == ()


def test_kernels_differ_in_how_fast_they_decode_and_windows_do_not_slow_down() -> None:
    workload = {"context": 1024, "output": 40, "batch": 4}
    names = ("full-eager", "full-flash", "full-flashinfer", "streaming-llm")
    scenarios = [in_memory(name, 2**28, workload=workload) for name in names]
    scenarios[-1] = scenarios[-1].model_copy(
        update={"policies": in_memory("streaming-llm", 2**28, policies={"window_tokens": 60}).policies}
    )
    runs = [run_scenario(scenario) for scenario in scenarios]
    rates = [metrics_for(s, r)["throughput_tokens_per_s"] for s, r in zip(scenarios, runs, strict=True)]
    assert rates == sorted(rates)
    steps = runs[-1].decoded.steps  # type: ignore[union-attr]
    assert steps[0][1] == pytest.approx(steps[-1][1])
    assert runs[-1].kv_memory_peak_bytes == 4 * 4 * PAGE_BYTES


def test_what_the_device_holds_no_selection_of_is_out_of_memory_and_a_budget_is_at_fault_itself() -> None:
    workload = {"context": 1024, "output": 8, "batch": 2}
    run = run_scenario(in_memory("quest", 1000.0, workload=workload))
    assert run.outcome == "out_of_memory"
    assert "budget.memory: 500 B per sequence hold no selection" in run.why
    limited = tiny(DECODING, system="quest", model=MODEL.model_dump(), workload=workload, budget={"kv": "1 kB"})
    with pytest.raises(InputError, match="hold no selection"):
        run_scenario(limited.model_copy(update={"budget": limited.budget.model_copy(update={"kv_share": None})}))


def test_what_weights_and_workspace_lack_is_said_with_the_largest_of_them() -> None:
    # Two prompts of 1,024 tokens pass a layer together: 2 x 32 numbers of each, and 3 x 48 of the feed-forward network.
    run = run_scenario(in_memory("quest", -(2.0**15), workload={"context": 1024, "output": 8}))
    assert run.outcome == "out_of_memory"
    assert "more memory than there is: it lacks 32.8 kB (workspace: activations 852.0 kB, " in run.why


def test_scores_of_a_prompt_whose_kv_is_on_the_host_run_out_of_memory_too() -> None:
    memory = {"unified": False, "copy_bytes_per_s": "1 GB/s", "host_capacity_bytes": "1 GB"}
    device = {"extends": "tiny", "memory": memory}
    placed = {"placement": {"name": "all-or-nothing", "overflow": "host"}}
    workload = {"context": 1024, "output": 8, "batch": 1}
    outcomes = {}
    for name in ("full-eager", "full-flash"):
        scenario = tiny(
            DECODING,
            system=name,
            device=device,
            model=tiny_model(layers=8).model_dump(),
            policies=placed,
            workload=workload,
            budget={"kv_share": None},
        )
        outcomes[name] = run_scenario(leaving(scenario, 400e3))
    assert outcomes["full-flash"].outcome == "done"
    assert outcomes["full-eager"].outcome == "out_of_memory"
    assert outcomes["full-eager"].why.startswith("attention: workspace: attention needs 33.6 MB")


def test_where_no_sequence_fits_the_peak_has_what_is_held_anyway() -> None:
    scenario = in_memory("quest", 2000.0, workload={"context": 1024, "output": 8, "batch": 2})
    run = run_scenario(scenario)
    assert run.outcome == "out_of_memory"
    assert run.memory_peak_bytes == scenario.budget.memory_bytes - 2000
    assert sum(run.memory_at_peak.values()) == run.memory_peak_bytes
