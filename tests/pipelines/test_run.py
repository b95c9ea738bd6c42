"""Whole runs in the modelled world: outcomes, conservation, equal runs."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.metrics import metrics_for, metrics_of
from kvferry.api import schedule as schedules
from kvferry.api.schedule import compare_schedules
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario, run_whole
from kvferry.policies.loading.milp import MilpResult, milp_plan
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import bandwidth_trace

SMALL = {
    "name": "small",
    "system": "ferry",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "50 Mbit/s", "rtt": "4 ms"},
    "workload": {"kind": "context-reuse", "context": "8Ki", "requests": 2},
}


def small(*overrides: str) -> Scenario:
    return load_scenario(SMALL, overrides)


def test_how_long_a_run_took_is_what_passed_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000))
    monkeypatch.setattr("kvferry.pipelines.run.perf_counter", lambda: float(next(clock)))
    measured = run_scenario(small()).measured
    assert (measured["simulation_s"], measured["bounds_s"]) == (1.0, 1.0)


def test_what_is_in_memory_is_loaded_with_the_first_token() -> None:
    """Also where it is the only one."""
    for output in (1, 3):
        workload = {"kind": "decode", "context": 512, "batch": 2, "output": output}
        run = run_scenario(load_scenario({**SMALL, "system": "vllm", "workload": workload}))
        assert run.outcome == "done"
        for record in run.requests:
            assert (record.loaded_s, len(record.token_times_s)) == (record.token_times_s[0], output)


@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_loads_every_unit_and_never_beats_the_bound(system: str, coupling: str) -> None:
    scenario = small(f"system={system}", f"coupling={coupling}", "link={trace: wifi-congested, scale: 0.1, rtt: 4 ms}")
    run = run_scenario(scenario)
    assert run.outcome == "done"
    assert [r.request for r in run.requests] == [0, 1]
    columns = scenario.model.kv_heads if coupling == "per_head" else 1
    for record in run.requests:
        assert record.units_computed + record.units_streamed == 8 * scenario.model.layers * columns
        assert record.loaded_s is not None
        assert record.bound_s is not None
        assert record.first_token_s is not None
        assert record.bound_s <= record.loaded_s - record.arrival_s
        assert record.loaded_s < record.first_token_s


def test_a_schedule_that_wall_time_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all("note" not in row for row in compare_schedules(small(), "highs"))

    def stopped(*arguments: Any, **keywords: Any) -> MilpResult:
        return replace(milp_plan(*arguments, **keywords), status="stopped", reproducible=False)

    monkeypatch.setattr(schedules, "milp_plan", stopped)
    row = compare_schedules(small(), "highs")[-1]
    assert row["note"] == "not reproducible: the solver was stopped after 60 s of wall time"


def test_a_run_may_last_longer_than_its_trace_has_pieces_for() -> None:
    # Twelve days, of a trace in steps of 0.1 s.
    run = run_scenario(small("system=stream-only", "link={trace: wifi-campus, scale: 9.0e-9}", "workload.requests=1"))
    assert run.outcome == "done"
    assert run.duration_s > 1_000_000
    assert run.link_times_s[-1] == run.duration_s
    assert len(run.link_bytes_per_s) == 100_000


@pytest.mark.parametrize("rtt", ["4 ms", "300 ms", "3 s"])
@pytest.mark.parametrize("values", ["100 Mvalue/s", "1 Mvalue/s"])
def test_bytes_on_the_link_are_used_or_wasted(rtt: str, values: str) -> None:
    # A long round trip or a slow decompressor leaves bytes on their way when the load is done.
    run = run_scenario(small("workload.requests=3", f"link.rtt={rtt}", f"device.decompressor.values_per_s={values}"))
    moved = sum(span.n_bytes for span in run.spans if span.resource == "link")
    assert moved == pytest.approx(sum(r.streamed_bytes + r.wasted_bytes for r in run.requests), rel=1e-9)


def test_bounds_hold_where_round_trips_outages_and_loads_meet() -> None:
    # By hand: bytes come to the bottleneck half a round trip after they are asked for, when the outage is over.
    outage = "link={rate: 5 Mbit/s, rtt: 2 s, outages: [{start: 0 s, duration: 1 s}]}"
    (record,) = run_scenario(small("system=stream-only", "workload.requests=1", outage)).requests
    assert record.loaded_s == pytest.approx(2.0 + record.streamed_bytes / (5e6 / 8), rel=0.05)
    # Dispatch is slowed by the load as the bound has it.
    slow = ("device.processors.gpu.dispatch_s=20 ms", "load={share: 0.9}")
    (loaded,) = run_scenario(small("system=local-prefill", "workload.requests=1", *slow)).requests
    for each in (record, loaded):
        assert each.bound_s is not None
        assert each.loaded_s is not None
        assert each.bound_s <= each.loaded_s


@given(
    system=st.sampled_from(sorted(SYSTEMS)),
    coupling=st.sampled_from(["per_head", "all_heads"]),
    rtt_ms=st.integers(0, 3000),
    outage_ms=st.tuples(st.integers(0, 2000), st.integers(1, 2000)),
    share=st.floats(0, 0.95),
    dispatch_us=st.integers(0, 20_000),
    mbit=st.floats(0.5, 500),
)
def test_no_system_beats_the_bound(
    system: str,
    coupling: str,
    rtt_ms: int,
    outage_ms: tuple[int, int],
    share: float,
    dispatch_us: int,
    mbit: float,
) -> None:
    start, duration = outage_ms
    link = f"rate: {mbit} Mbit/s, rtt: {rtt_ms} ms, outages: [{{start: {start} ms, duration: {duration} ms}}]"
    scenario = small(
        f"system={system}",
        f"coupling={coupling}",
        f"link={{{link}}}",
        f"load={{share: {share}}}",
        f"device.processors.gpu.dispatch_s={dispatch_us} us",
        "workload.context=3Ki",
    )
    for record in run_scenario(scenario).requests:
        assert record.bound_s is not None
        assert record.loaded_s is not None
        assert record.bound_s <= (record.loaded_s - record.arrival_s) * (1 + 1e-9)


def test_a_run_ends_with_its_last_request() -> None:
    closed = run_scenario(small("workload.requests=1"))
    spaced = run_scenario(small("workload.requests=1", "workload.arrivals={every: 100 s}"))
    assert spaced.energy_j == closed.energy_j
    assert spaced.duration_s == closed.duration_s


def test_only_entropy_coded_chunks_are_decompressed() -> None:
    resources = {
        system: {span.resource for span in run_scenario(small(f"system={system}")).spans}
        for system in ("kivi", "stream-only")
    }
    assert "decompress" in resources["stream-only"]
    assert "decompress" not in resources["kivi"]


def test_a_load_names_the_codec_that_its_chunks_came_in_and_a_further_question_loads_nothing() -> None:
    loaded, asked = run_scenario(load_scenario("quickstart", ["workload.context=2Ki", "workload.turns=2"])).requests
    assert loaded.codec == SYSTEMS["ferry"].codec == "huffman"
    assert (asked.loaded_s, asked.codec) == (None, None)


def test_a_question_overtakes_other_requests_contexts() -> None:
    # The second request's context is under way when the first one's question comes: it waits for one op at most.
    apart = ("workload.arrivals={every: 1 ms}", "system=local-prefill")
    run = run_scenario(small(*apart))
    first = run.requests[0]
    questions = [span for span in run.spans if span.label == "Prefill" and span.request == 0]
    longest_s = max(span.end_s - span.start_s for span in run.spans if span.label in ("Advance", "Project"))
    assert first.loaded_s is not None
    assert questions[0].start_s - first.loaded_s <= longest_s + 1e-9
    assert any(span.request == 1 and span.start_s > questions[0].end_s for span in run.spans)


def test_when_the_link_dies_the_device_computes_the_rest() -> None:
    ends_s = bandwidth_trace("wifi-campus").duration_s
    dying = f"link={{trace: wifi-campus, on_end: end, scale: 0.02, offset: {ends_s - 0.1} s}}"
    for system in ("ferry", "strong-hybrid", "sparkv", "strong-hybrid-two-pointer", "cachegen"):
        run = run_scenario(small(f"system={system}", dying, "workload.requests=1"))
        assert run.outcome == "done", (system, run.why)
        (record,) = run.requests
        assert record.units_computed > 0


def test_a_link_that_dies_is_reported_and_what_came_of_a_unit_booked() -> None:
    ends_s = bandwidth_trace("wifi-campus").duration_s
    dying = f"link={{trace: wifi-campus, on_end: end, scale: 0.02, offset: {ends_s - 0.1} s}}"
    run = run_scenario(small("system=stream-only", dying, "workload.requests=1"))
    (record,) = run.requests
    assert record.link_down is not None and "trace ends" in record.link_down
    assert run.faults == (f"the link went down, and what was missing was computed: {record.link_down}",)
    assert record.units_streamed > 0
    assert record.wasted_bytes > 0
    moved = sum(span.n_bytes for span in run.spans if span.resource == "link")
    assert moved == pytest.approx(record.streamed_bytes + record.wasted_bytes, rel=1e-9)
    assert run_scenario(small("workload.requests=1")).faults == ()


def test_a_dead_link_from_the_start_leaves_local_compute_in_both_couplings() -> None:
    dead = "link={trace: wifi-campus, on_end: end, offset: 100000 s}"
    for coupling in ("per_head", "all_heads"):
        run = run_scenario(small("system=ferry", dead, "workload.requests=1", f"coupling={coupling}"))
        assert run.outcome == "done", run.why
        assert run.requests[0].units_streamed == 0


def test_stream_only_ends_when_the_link_has_carried_all() -> None:
    # 8Ki tokens at R bytes/s: round trip, then all bytes in a row, then the last unit is opened.
    scenario = small("system=stream-only", "workload.requests=1")
    (record,) = run_scenario(scenario).requests
    rate = 50e6 / 8
    assert record.loaded_s is not None
    assert record.loaded_s == pytest.approx(0.004 + record.streamed_bytes / rate, rel=0.01)
    assert record.loaded_s >= 0.004 + record.streamed_bytes / rate


@pytest.mark.parametrize("factor", [1.1, 2.0, 7.0])
def test_more_bandwidth_never_slows_a_stream(factor: float) -> None:
    slow = run_scenario(small("system=stream-only", "link={trace: wifi-congested, scale: 0.1}"))
    fast = run_scenario(small("system=stream-only", f"link={{trace: wifi-congested, scale: {0.1 * factor}}}"))
    for a, b in zip(slow.requests, fast.requests, strict=True):
        assert b.loaded_s is not None
        assert a.loaded_s is not None
        assert b.loaded_s - b.arrival_s <= a.loaded_s - a.arrival_s


def test_background_load_slows_what_is_computed_and_raises_the_bound() -> None:
    idle, loaded = (run_scenario(small("system=local-prefill", *more)) for more in ((), ("load={share: 0.5}",)))
    times = [run.requests[0].loaded_s for run in (idle, loaded)]
    bounds = [run.requests[0].bound_s for run in (idle, loaded)]
    assert times[1] == pytest.approx(2 * times[0], rel=0.05)
    assert bounds[0] < bounds[1]


def test_a_model_that_does_not_fit_is_a_result() -> None:
    run = run_scenario(small("budget={memory: 10 kB}"))
    assert run.outcome == "out_of_memory"
    assert "weights needs" in run.why


def test_a_context_that_does_not_fit_is_a_result_and_keeps_what_was_done() -> None:
    kv = small().model.kv_bytes_per_token * 8192
    whole = metrics_for(small(), run_scenario(small()))["memory_peak_bytes"]
    run = run_scenario(small(f"budget={{memory: {int(whole - kv / 2)} B}}"))
    assert run.outcome == "out_of_memory"
    assert "kv needs" in run.why
    assert run.requests == ()


def test_a_link_that_ends_is_a_result() -> None:
    # Under per_head what was streamed of a column cannot be computed on.
    link = "link={trace: wifi-campus, on_end: end, scale: 1e-6}"
    run = run_scenario(small("system=stream-only", link, "coupling=per_head"))
    assert run.outcome == "infeasible"
    assert "link" in run.why


def test_concurrent_requests_arrive_on_their_own_and_share() -> None:
    alone = run_scenario(small("system=stream-only", "workload.requests=1"))
    together = run_scenario(small("system=stream-only", "workload.arrivals={every: 10 ms}"))
    assert [r.arrival_s for r in together.requests] == pytest.approx([0.0, 0.01])
    last_s = max(r.loaded_s or 0.0 for r in together.requests)
    assert last_s > 1.5 * (alone.requests[0].loaded_s or 0.0)


def test_poisson_arrivals_depend_on_the_seed_alone() -> None:
    def arrivals(seed: int) -> list[float]:
        run = run_scenario(small("workload.arrivals={rate: 5 Hz}", "workload.requests=5", f"seed={seed}"))
        return [record.arrival_s for record in run.requests]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def digest(run: Run) -> str:
    return hashlib.sha256(repr((run.requests, run.spans, sorted(run.energy_j.items()))).encode()).hexdigest()


def test_equal_scenarios_give_equal_runs_in_any_process() -> None:
    here = digest(run_scenario(small("system=sparkv", "link.rtt=5 ms")))
    program = (
        "import sys; sys.path.insert(0, 'tests/pipelines')\n"
        "from test_run import digest, run_scenario, small\n"
        "print(digest(run_scenario(small('system=sparkv', 'link.rtt=5 ms'))))"
    )
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


def test_metrics_of_a_run_tell_its_story() -> None:
    run = run_scenario(small())
    metrics = metrics_of(run, main_processor="gpu")
    waits = [r.first_token_s - r.arrival_s for r in run.requests if r.first_token_s is not None]
    assert metrics["ttft_s"] == pytest.approx(sum(waits) / 2)
    assert 0 <= metrics["regret"] < 0.5
    assert metrics["energy_j"] == pytest.approx(sum(run.energy_j.values()) / 2)


def test_interrupted_runs_keep_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_after_two(done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    run = run_scenario(small("workload.requests=5"), stop_after_two)
    assert (run.outcome, run.why) == ("interrupted", "2 of 5 requests")
    assert len(run.requests) == 2


def test_of_several_runs_none_is_half_a_run() -> None:
    def stop_after_two(done: int, of: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    asked = small("workload.requests=5")
    assert len(run_whole(asked).requests) == 5
    with pytest.raises(KeyboardInterrupt):
        run_whole(asked, stop_after_two)


def test_schedules_are_of_a_conversations_first_question() -> None:
    first, alone = (compare_schedules(small(*turns))[0] for turns in (["workload.turns=3"], []))
    assert first["load_s"] == pytest.approx(alone["load_s"])


def test_schedules_end_with_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "run_scenario", lambda *_, **__: Run(outcome="interrupted"))
    with pytest.raises(KeyboardInterrupt):
        compare_schedules(small())


def test_schedules_of_a_world_that_cannot_hold_them_say_so() -> None:
    (row, *_) = compare_schedules(small("budget={memory: 10 kB}"))
    assert (row["load_s"], row["outcome"]) == (None, "out_of_memory")


def test_schedules_are_made_for_the_background_load_at_their_start() -> None:
    idle, loaded = (
        {row["schedule"]: row for row in compare_schedules(small("link.rate=5 Mbit/s", *load))}
        for load in ((), ("load={share: 0.5}",))
    )
    for name, row in loaded.items():
        # Slower, but by no more than the processor is; and carried out in the time that the plan promised.
        assert 1.0 < row["makespan_s"] / idle[name]["makespan_s"] <= 2.0
    assert loaded["chain"]["load_s"] == pytest.approx(loaded["chain"]["completion_s"], rel=0.1)


def test_schedules_of_one_problem() -> None:
    rows = {row["schedule"]: row for row in compare_schedules(small(), solver="highs")}
    assert set(rows) == {
        "greedy",
        "greedy-literal",
        "greedy-top-down",
        "greedy-last-first",
        "chain",
        "split",
        "milp (highs)",
    }
    for row in rows.values():
        assert row["bound_s"] <= row["makespan_s"] * (1 + 1e-9)
        assert row["bound_gap"] >= -1e-9
        assert row["regret"] >= 0
    assert rows["milp (highs)"]["makespan_s"] <= rows["greedy"]["makespan_s"] * (1 + 1e-9)
