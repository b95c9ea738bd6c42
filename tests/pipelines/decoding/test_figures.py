"""Figures of a decoded batch: over the whole output, by hand; when it is interrupted; what a run leaves of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import pytest
from tiny import DECODING, changed, tiny

from kvferry.analysis.decoding import paces_of
from kvferry.analysis.envelope import envelope_of
from kvferry.analysis.folder import write_run
from kvferry.analysis.metrics import metrics_of
from kvferry.backends.needs import Needs
from kvferry.backends.sim.world import SimWorld
from kvferry.backends.world import Inputs, Say, World
from kvferry.machine.span import Tell
from kvferry.pipelines.decoding.workload import half_of, middle_of
from kvferry.pipelines.record import Decoded, RequestRecord, Run
from kvferry.pipelines.run import run_scenario
from kvferry.pipelines.tally import Totals
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

DESCRIBED = changed(
    DECODING, workload={"output": 200}, policies={"group_tokens": 4, "selected_tokens": 80, "slots": 100}
)


def scenario(**workload: Any) -> Scenario:
    return tiny(DESCRIBED, workload=workload)


def figures(run: Run, measure: Literal["decode", "end_to_end"] = "decode") -> dict[str, float]:
    return metrics_of(run, main_processor="gpu", measure=measure)


def totals(now_s: float, read_bytes: float, energy_j: float) -> Totals:
    reads = {("storage", "Read"): read_bytes}
    return Totals(now_s=now_s, busy_s={}, n_bytes=reads, energy_j={"gpu": energy_j}, storage_utilisation=0.0)


def test_the_rest_follows_the_second_half_by_hand() -> None:
    # Steps of 1, 2, 1, 2 s: the second half begins with the third. Of nine tokens one comes from prefill, four
    # steps are left, at 1.5 s, 3 B and 1 J each.
    assert half_of(5) == 2
    decoded = Decoded(
        batch=3,
        layers=2,
        output=9,
        token_times_s=(2.0, 3.0, 5.0, 6.0, 8.0),
        half=totals(5.0, 10.0, 1.0),
        half_step=2,
        end=totals(8.0, 16.0, 3.0),
    )
    found = paces_of(decoded)
    assert found is not None
    assert (found.tokens, found.decoding_s, found.tpot_s, found.times) == (24, 12.0, 1.5, 2.0)
    request = RequestRecord(request=0, arrival_s=0.0, token_times_s=decoded.token_times_s)
    figures = metrics_of(Run(outcome="done", requests=(request,), decoded=decoded), main_processor="gpu")
    assert (figures["read_bytes"], figures["energy_j"], figures["block_s"]) == (28.0, 7.0, 0.75)
    # Interrupted, what there is counts: four steps in 6 s.
    found = paces_of(decoded, interrupted=True)
    assert found is not None
    assert (found.tokens, found.decoding_s, found.times) == (12, 6.0, 0.0)


@pytest.mark.parametrize("measure", ["decode", "end_to_end"])
def test_a_part_of_the_steps_tells_every_figure_of_all(measure: Literal["decode", "end_to_end"]) -> None:
    # 20 of 256 groups and 100 slots: the buffer is full after some twenty steps. What 60 steps select is a sample of
    # what 200 do: judged by the mean over several seeds.
    def mean_figures(decoded: int | None) -> dict[str, float]:
        wanted = [scenario(decoded=decoded).model_copy(update={"measure": measure, "seed": seed}) for seed in range(5)]
        found = [figures(run_scenario(one), measure) for one in wanted]
        return {key: mean(one[key] for one in found) for key in found[0]}

    full, part = mean_figures(None), mean_figures(60)
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
        "block_io_s",
    } <= part.keys()
    assert part == pytest.approx(full, rel=0.05)


def test_every_span_counts_for_how_busy_the_processor_was(monkeypatch: pytest.MonkeyPatch) -> None:
    known = run_scenario(scenario(output=20))
    monkeypatch.setattr("kvferry.pipelines.tally.MOST_SPANS", 10)
    few = run_scenario(scenario(output=20))
    assert len(few.spans) == 10
    assert few.tally.count == len(known.spans)
    assert figures(few) == figures(known)
    busy_s = sum(span.end_s - span.start_s for span in known.spans if span.resource == "gpu")
    assert figures(known)["compute_utilisation"] == pytest.approx(busy_s / known.duration_s)


def test_interrupted_it_tells_what_was_decoded() -> None:
    told: list[int] = []

    def stop(tokens: int, of: int) -> None:
        """The tokens before those that are decoded are skipped at once; then every sixteenth is told."""
        told.append(tokens)
        if len(told) == 2:
            raise KeyboardInterrupt

    run = run_scenario(scenario(decoded=60), stop)
    assert told[1] == told[0] + 15
    assert (run.outcome, run.why, run.interrupted) == ("interrupted", "16 of 200 tokens of 2 sequences each", True)
    times_s = run.requests[0].token_times_s
    assert len(times_s) == 16
    assert figures(run)["throughput_tokens_per_s"] == pytest.approx(2 * 15 / (times_s[-1] - times_s[0]))
    assert figures(run)["read_bytes"] == sum(span.n_bytes for span in run.spans if span.label == "Read")


def test_interrupted_in_memory_it_counts_all_tokens() -> None:
    def stop(tokens: int, of: int) -> None:
        raise KeyboardInterrupt

    run = run_scenario(scenario().under("vllm"), stop)
    assert (run.outcome, run.why) == ("interrupted", "32 of 400 tokens of 2 sequences")


def test_memory_is_reported_in_its_parts() -> None:
    run = run_scenario(scenario(output=4))
    parts = figures(run)["kv_metadata_bytes"], figures(run)["kv_buffer_bytes"]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(run.kv_memory_peak_bytes, abs=2)


def test_answers_are_left_in_the_folder(tmp_path: Path) -> None:
    run = Run(outcome="done", measured={"answers": {"0": [7, 5]}})
    write_run(tmp_path, "", run, envelope_of(run, {}, scenario="x", system="kvswap", seed=0))
    assert json.loads((tmp_path / "answers.json").read_text()) == {"0": [7, 5]}


@pytest.mark.parametrize("system", ["flexgen", "os-paging"])
def test_a_short_context_that_grows_is_told_by_its_middle(system: str) -> None:
    """Where all KV is read, every token takes longer than the one before: the first ones would be 10 % fast."""

    def tpot_s(decoded: str) -> float:
        settings = ["workload.context=1Ki", "workload.batch=1", "workload.output=250", f"workload.decoded={decoded}"]
        one = load_scenario("kvswap/throughput", [f"system={system}", *settings])
        return figures(run_scenario(one))["tpot_s"]

    assert tpot_s("8") == pytest.approx(tpot_s("null"), rel=0.015)


def test_the_end_of_an_output_is_slower_where_all_is_read() -> None:
    """Its context is that of nearly all tokens: 1,275 against 1,148 in the middle, of which FlexGen reads all."""

    def read_bytes(part: str) -> float:
        settings = ["system=flexgen", "workload.context=1Ki", "workload.batch=1", "workload.output=256"]
        settings += ["workload.decoded=8", f"workload.part={part}"]
        return figures(run_scenario(load_scenario("kvswap/throughput", settings)))["read_bytes"]

    assert read_bytes("end") / read_bytes("middle") == pytest.approx(1275 / 1148, rel=0.01)


class FromTheFirst(SimWorld):
    """Decodes every token, as a real world does."""

    may_skip = False


def test_the_world_says_whether_tokens_are_skipped_whatever_the_scenario_says() -> None:
    """As a scenario for the modelled world is carried out for real by ``kvferry fidelity``."""
    asked = tiny(DECODING, system="flexgen", policies={}, workload={"output": 400, "decoded": 8})

    @contextmanager
    def real(described: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[World]:
        yield FromTheFirst(described, needs, inputs, tell)

    skipping, first, replayed = (
        run.tally.bytes_of("storage", "Read")
        for run in (
            run_scenario(asked),
            run_scenario(asked, open_world=real),
            run_scenario(asked, inputs=Inputs(from_the_first=True)),
        )
    )
    assert first == replayed < skipping


def test_what_was_asked_to_be_decoded_is_decoded() -> None:
    asked = tiny(DECODING, system="flexgen", policies={}, workload={"output": 40, "decoded": 39})
    assert figures(run_scenario(asked))["tokens_decoded"] == 39


@pytest.mark.parametrize(("all_steps", "steps"), [(999, 63), (999, 7), (10, 9), (10, 10), (1, 1), (0, 0)])
def test_a_part_in_the_middle_stands_for_a_growing_whole(all_steps: int, steps: int) -> None:
    before = middle_of(all_steps, steps)
    assert 0 <= before <= all_steps - steps
    if steps:
        taken = [1000 + n for n in range(before, before + steps)]
        late = taken[half_of(steps + 1) :]
        whole = sum(taken) + (all_steps - steps) * sum(late) / len(late)
        assert whole == pytest.approx(sum(1000 + n for n in range(all_steps)), rel=2e-3)
