"""Figures of a decoded batch: over the whole output, by hand; when it is interrupted; what a run leaves of them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.analysis.envelope import envelope_of
from kvferry.analysis.folder import write_run
from kvferry.analysis.metrics import metrics_of
from kvferry.pipelines.decoding.decode import DecodeRecord
from kvferry.pipelines.decoding.figures import Totals, half_of, paces_of
from kvferry.pipelines.decoding.run import run_offload
from kvferry.pipelines.record import Run
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

DESCRIBED: dict[str, Any] = {
    "name": "tiny",
    "system": "kvswap",
    "device": {"extends": "tiny", "storage": {"bytes_per_s": "100 MB/s", "latency_s": "50 us"}},
    "model": "tiny",
    "link": {"rate": "1 MB/s"},
    "workload": {"kind": "offload-decode", "context": 1024, "batch": 2, "output": 200},
    "policies": {"group_tokens": 4, "selected_tokens": 80, "slots": 100},
    "budget": {"kv_share": 0.9},
    "measure": "decode",
}


def scenario(**workload: Any) -> Scenario:
    return load_scenario({**DESCRIBED, "workload": {**DESCRIBED["workload"], **workload}})


def test_totals_go_on_as_they_did_since_then() -> None:
    half, end = Totals({"read_bytes": 4.0}, {"gpu": 1.0}), Totals({"read_bytes": 10.0}, {"gpu": 3.0})
    whole = end.extended(half, 2.0)
    assert (whole.sums, whole.energy_j) == ({"read_bytes": 22.0}, {"gpu": 7.0})


def test_the_rest_follows_the_second_half_by_hand() -> None:
    # Steps of 1, 2, 1, 2 s: the second half begins with the third. Of nine tokens one comes from prefill, four
    # steps are left, at 1.5 s and 3 B each.
    assert half_of(5) == 2
    flow: Any = SimpleNamespace(record=DecodeRecord(token_times_s=[2.0, 3.0, 5.0, 6.0, 8.0]))
    half, end = Totals({"read_bytes": 10.0}, {}), Totals({"read_bytes": 16.0}, {})
    found = paces_of(scenario(output=9), flow, 3, half, end, interrupted=False)
    assert found is not None
    assert (found.tokens, found.decoding_s, found.tpot_s) == (24, 12.0, 1.5)
    assert found.totals.sums["read_bytes"] == 28.0
    # Interrupted, what there is counts: four steps in 6 s.
    found = paces_of(scenario(output=9), flow, 3, half, end, interrupted=True)
    assert found is not None
    assert (found.tokens, found.decoding_s, found.totals) == (12, 6.0, end)


@pytest.mark.parametrize("measure", ["decode", "end_to_end"])
def test_a_part_of_the_steps_tells_every_figure_of_all(measure: str) -> None:
    # 20 of 256 groups and 100 slots: the buffer is full after some twenty steps.
    full, part = (
        metrics_of(run_offload(scenario(decoded=decoded).model_copy(update={"measure": measure})), main_processor="gpu")
        for decoded in (None, 60)
    )
    assert (part.pop("tokens_decoded"), full.pop("tokens_decoded")) == (60, 200)
    # One step's, of those that were decoded.
    del part["largest_gap_s"], full["largest_gap_s"]
    assert part.keys() == full.keys()
    assert {
        "energy_j",
        "read_bytes",
        "write_bytes",
        "reuse_rate",
        "compute_utilisation",
        "io_to_compute",
    } <= part.keys()
    assert part == pytest.approx(full, rel=0.05)


def test_every_span_counts_for_how_busy_the_processor_was(monkeypatch: pytest.MonkeyPatch) -> None:
    known = run_offload(scenario(output=20))
    monkeypatch.setattr("kvferry.pipelines.decoding.figures.MOST_SPANS", 10)
    few = run_offload(scenario(output=20))
    assert len(few.spans) == 10
    assert few.figures == known.figures
    busy_s = sum(span.end_s - span.start_s for span in known.spans if span.resource == "gpu")
    assert known.figures["compute_utilisation"] == pytest.approx(busy_s / known.duration_s)


def stop(tokens: int, of: int) -> None:
    raise KeyboardInterrupt


def test_interrupted_it_tells_what_was_decoded() -> None:
    run = run_offload(scenario(decoded=60), stop)
    assert (run.outcome, run.why, run.interrupted) == ("interrupted", "16 of 200 tokens of 2 sequences each", True)
    times_s = run.requests[0].token_times_s
    assert len(times_s) == 16
    assert run.figures["throughput_tokens_per_s"] == pytest.approx(2 * 15 / (times_s[-1] - times_s[0]))
    assert run.figures["read_bytes"] == sum(span.n_bytes for span in run.spans if span.label == "Read")


def test_interrupted_in_memory_it_counts_all_tokens() -> None:
    run = run_offload(scenario().under("vllm"), stop)
    assert (run.outcome, run.why) == ("interrupted", "32 of 400 tokens of 2 sequences")


def test_memory_is_told_in_its_parts() -> None:
    run = run_offload(scenario(output=4))
    parts = run.figures["kv_metadata_bytes"], run.figures["kv_buffer_bytes"]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(run.kv_memory_peak_bytes, abs=2)


def test_answers_are_left_in_the_folder(tmp_path: Path) -> None:
    run = Run(outcome="done", measured={"answers": {"0": [7, 5]}})
    write_run(tmp_path, "", run, envelope_of(run, {}, scenario="x", system="kvswap", seed=0))
    assert json.loads((tmp_path / "answers.json").read_text()) == {"0": [7, 5]}
