"""The figures of a run: by hand first, then what must hold of any run."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.envelope import envelope_of, provenance_of, to_json
from kvferry.analysis.metrics import metrics_of
from kvferry.analysis.occupancy import busy_share, delivered, rows, shares, union
from kvferry.backends.sim.machine import SimMachine
from kvferry.codecs.sizes import measured
from kvferry.machine.ops import Extents
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import DecompressorSpec, DeviceSpec, MemorySpec, ProcessorSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.storage import StorageSpec
from kvferry.specs.workload import SloSpec
from kvferry.traces.rate import RateTrace


def two_requests() -> Run:
    first = RequestRecord(
        request=0, arrival_s=1.0, loaded_s=2.0, first_token_s=2.5, token_times_s=(2.5, 3.0, 4.5),
        units_computed=1, units_streamed=3, streamed_bytes=300.0, wasted_bytes=10.0, bound_s=0.8,
        streamed_bits_per_value=2.0,
    )  # fmt: skip
    second = RequestRecord(
        request=1, arrival_s=2.0, loaded_s=5.0, first_token_s=5.5, token_times_s=(5.5, 6.0),
        units_computed=3, units_streamed=1, streamed_bytes=300.0, wasted_bytes=5.0, bound_s=2.0,
        streamed_bits_per_value=4.0,
    )  # fmt: skip
    spans = (
        Span("link", "fetch", 1.0, 2.0, 300.0, 0),
        Span("link", "fetch", 1.5, 3.0, 315.0, 1),
        Span("gpu", "Project", 0.5, 1.5, request=0),
        Span("gpu", "DecodeStep", 2.5, 3.0, request=0),
        Span("cpu", "Project", 1.0, 6.0),
        Span("storage", "Read", 1.0, 2.0, 64.0),
        Span("storage", "Write", 2.0, 2.5, 16.0),
    )
    return Run(
        outcome="done", requests=(first, second), spans=spans, duration_s=7.0, energy_j={"gpu": 6.0, "base": 2.0},
        memory_capacity_bytes=100.0, memory_peak_bytes=80.0, kv_memory_peak_bytes=30.0,
    )  # fmt: skip


def test_a_run_by_hand() -> None:
    metrics = metrics_of(two_requests(), main_processor="gpu")
    assert metrics == pytest.approx(
        {
            "requests": 2,
            "requests_finished": 2,
            # TTFT 1.5 and 3.5
            "ttft_s": 2.5,
            "ttft_p50_s": 2.5,
            "ttft_p99_s": 3.48,
            # TPOT 1.0 and 0.5
            "tpot_p50_s": 0.75,
            "tpot_p95_s": 0.975,
            "tpot_p99_s": 0.995,
            "ttft_p95_s": 3.4,
            # (4.5 - 2.5) / 2 = 1 and (6.0 - 5.5) / 1 = 0.5
            "tpot_s": 0.75,
            "largest_gap_s": 1.5,
            # five tokens from 1.0 to 6.0
            "throughput_tokens_per_s": 1.0,
            # loads 1 and 3; bounds 0.8 and 2; regrets 0.25 and 0.5
            "load_s": 2.0,
            "bound_s": 1.4,
            "bound_gap": 2.0 / 1.4 - 1,
            "regret": 0.375,
            "regret_p95": 0.4875,
            "streamed_share": 0.5,
            "wasted_bytes": 15.0,
            # 150 values at 2 bit and 75 at 4 bit (in eighths): 600 / 225
            "streamed_bits_per_value": 600 / 225,
            "energy_gpu_j": 3.0,
            "energy_base_j": 1.0,
            "energy_j": 4.0,
            "memory_peak_bytes": 80.0,
            "kv_memory_peak_bytes": 30.0,
            "link_bytes": 615.0,
            # from 1 to 6: the link is busy 1..3, the gpu 1..1.5 and 2.5..3, storage 1..2.5
            "link_utilisation": 0.4,
            "compute_utilisation": 0.2,
            "storage_utilisation": 0.3,
            "read_bytes": 64.0,
            "write_bytes": 16.0,
        }
    )


def test_what_a_machine_writes_is_not_read() -> None:
    spans: list[Span] = []
    device = load_device("tiny").model_copy(update={"storage": StorageSpec(bytes_per_s=1e9)})
    machine = SimMachine(device, load_model("tiny"), RateTrace.constant(1e6), costs=Roofline, tell=spans.append)
    machine.write(Extents((0, 8192), (1024, 2048)))
    machine.read(Extents((0,), (512,)))
    machine.env.run()
    request = RequestRecord(request=0, arrival_s=0.0, first_token_s=1.0)
    metrics = metrics_of(Run(outcome="done", requests=(request,), spans=tuple(spans)), main_processor="cpu")
    assert (metrics["write_bytes"], metrics["read_bytes"]) == (3072.0, 512.0)


def test_decode_throughput_counts_no_first_tokens() -> None:
    # two tokens and one after the first ones, from 2.5 to 6.0
    metrics = metrics_of(two_requests(), main_processor="gpu", measure="decode")
    assert metrics["throughput_tokens_per_s"] == pytest.approx(3 / 3.5)


def test_a_first_token_that_the_times_leave_out_counts_once() -> None:
    found = [
        metrics_of(
            Run(
                outcome="done",
                requests=(RequestRecord(request=0, arrival_s=0.0, first_token_s=1.0, token_times_s=times_s),),
            ),
            main_processor="gpu",
        )
        for times_s in ((1.5, 2.0), (1.0, 1.5, 2.0))
    ]
    assert found[0] == found[1]
    assert found[0]["throughput_tokens_per_s"] == 1.5


def test_what_does_not_apply_is_absent() -> None:
    assert metrics_of(Run(outcome="out_of_memory", why="too big"), main_processor="gpu") == {}
    waiting = Run(outcome="infeasible", requests=(RequestRecord(request=0, arrival_s=0.0),), energy_j={})
    assert metrics_of(waiting, main_processor="gpu") == {"requests": 1.0, "requests_finished": 0.0}


def test_a_link_that_nobody_used_was_idle() -> None:
    run = Run(
        outcome="done",
        requests=(RequestRecord(request=0, arrival_s=0.0, loaded_s=1.0, first_token_s=1.0),),
        link_times_s=(0.0, 1.0),
        link_bytes_per_s=(5.0,),
    )
    metrics = metrics_of(run, main_processor="gpu")
    assert metrics["link_bytes"] == metrics["link_utilisation"] == 0.0
    assert "compute_utilisation" not in metrics


def test_union_joins_overlaps_and_small_gaps() -> None:
    spans = [Span("x", "", 3.0, 4.0), Span("x", "", 0.0, 2.0), Span("x", "", 0.5, 1.0), Span("x", "", 4.1, 5.0)]
    starts, ends = union(spans)
    assert (starts.tolist(), ends.tolist()) == ([0.0, 3.0, 4.1], [2.0, 4.0, 5.0])
    starts, ends = union(spans, gap_s=0.2)
    assert (starts.tolist(), ends.tolist()) == ([0.0, 3.0], [2.0, 5.0])
    assert busy_share(spans, 1.0, 1.0) is None
    # slots 0..2..4: full, half
    assert shares(union(spans), np.array([0.0, 2.0, 4.0])).tolist() == [1.0, 0.5]


def test_delivered_follows_the_replayed_rate() -> None:
    # 30 bytes from 0 to 2, over a link of 10 B/s and then 20 B/s: all that it offered.
    edges, rates = delivered([Span("link", "", 0.0, 2.0, 30.0)], (0.0, 1.0, 3.0), (10.0, 20.0))
    assert (edges.tolist(), rates.tolist()) == ([0.0, 1.0, 2.0, 3.0], [10.0, 20.0, 0.0])
    # No rate known: evenly.
    edges, rates = delivered([Span("link", "", 1.0, 3.0, 30.0)], (), ())
    assert (edges.tolist(), rates.tolist()) == ([1.0, 3.0], [15.0])
    assert len(delivered([], (0.0, 1.0), (1.0,))[0]) == 0


def test_the_lowest_free_row_is_taken_first() -> None:
    starts_ends = [(0.0, 1.0), (0.0, 2.0), (0.0, 3.0), (3.0, 4.0), (3.0, 5.0)]
    assert rows([Span("link", "", start, end) for start, end in starts_ends]) == [0, 1, 2, 0, 1]


times = st.floats(0, 100, allow_nan=False)
some_spans = st.lists(
    st.builds(
        lambda a, d, n: Span("link", "fetch", a, a + d, n), times, st.floats(1e-3, 20), st.floats(0, 1e9)
    ),
    max_size=30,
)  # fmt: skip


@given(some_spans)
def test_what_was_delivered_is_what_the_spans_moved(spans: list[Span]) -> None:
    edges, rates = delivered(spans, (0.0, 20.0, 30.0, 90.0), (1e6, 0.0, 3e6))
    assert float((rates * np.diff(edges)).sum()) == pytest.approx(sum(s.n_bytes for s in spans), rel=1e-6, abs=1e-3)


@given(some_spans)
def test_rows_never_overlap_and_are_as_few_as_possible(spans: list[Span]) -> None:
    row_of = rows(spans)
    for row in set(row_of):
        own = sorted((s.start_s, s.end_s) for s, r in zip(spans, row_of) if r == row)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(own))
    at_once = max((sum(s.start_s <= t.start_s < s.end_s for s in spans) for t in spans), default=0)
    assert len(set(row_of)) == at_once


@given(some_spans)
def test_the_union_covers_what_counting_says(spans: list[Span]) -> None:
    starts, ends = union(spans)
    assert (starts[1:] > ends[:-1]).all()
    edges = np.linspace(0, 120, 7)
    total = float((shares((starts, ends), edges) * np.diff(edges)).sum())
    assert total == pytest.approx(float((ends - starts).sum()), abs=1e-6)
    assert busy_share(spans, 0.0, 120.0) == pytest.approx(total / 120, abs=1e-9)


optional_time = st.none() | st.floats(0, 1e6, allow_nan=False)


optional_bound = st.none() | st.just(0.0) | st.floats(1e-6, 1e6)


@given(st.lists(st.tuples(optional_time, optional_time, optional_bound), max_size=5))
def test_every_metric_is_a_finite_float(stories: list[tuple[float | None, float | None, float | None]]) -> None:
    requests = tuple(
        RequestRecord(request=i, arrival_s=0.0, loaded_s=loaded, first_token_s=first, bound_s=bound)
        for i, (loaded, first, bound) in enumerate(stories)
    )
    metrics = metrics_of(Run(outcome="done", requests=requests, energy_j={"gpu": 1.0}), main_processor="gpu")
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_the_envelope() -> None:
    run = Run(outcome="out_of_memory", why="kv needs 3 MiB, 2 MiB are free", measured={"simulate_s": 0.1})
    device = DeviceSpec(
        name="board",
        processors={"gpu": ProcessorSpec(kind="gpu", flop_per_s=1e12, bytes_per_s=1e11)},
        main="gpu",
        memory=MemorySpec(unified=True, capacity_bytes=1e9, bytes_per_s=1e11),
        decompressor=DecompressorSpec(values_per_s=5e7),
        sources={"memory.bytes_per_s": "data sheet"},
    )
    model = ModelSpec(
        name="toy", layers=2, hidden=8, query_heads=2, kv_heads=1, head_dim=4, ffn=16, vocabulary=32, source="made up"
    )
    provenance = provenance_of(device, model, link="wifi-campus")
    envelope = envelope_of(run, {}, scenario="quickstart", system="ferry", seed=7, provenance=provenance)
    text = to_json(envelope)
    document = json.loads(text)
    assert list(document) == ["metrics", "outcome", "provenance", "scenario", "seed", "system", "versions", "why"]
    assert set(document["versions"]) == {"kvferry", "python", "numpy", "simpy"}
    assert document["provenance"]["device"]["sources"] == {"memory.bytes_per_s": "data sheet"}
    assert document["provenance"]["link"] == "wifi-campus"
    assert "why" not in envelope_of(Run(outcome="done"), {}, scenario="s", system="x", seed=0)
    # Wall times differ between equal runs: they stay outside.
    assert "simulate_s" not in text


def test_json_is_strict() -> None:
    with pytest.raises(ValueError):
        to_json({"x": float("nan")})


@pytest.mark.parametrize(
    ("slo", "good", "tokens"),
    [
        (SloSpec(ttft_s=2.0), 1, 3),
        (SloSpec(ttft_s=4.0), 2, 5),
        (SloSpec(tpot_s=0.6), 1, 2),
        (SloSpec(ttft_s=2.0, tpot_s=0.6), 0, 0),
    ],
)
def test_requests_that_kept_their_slo(slo: SloSpec, good: int, tokens: int) -> None:
    metrics = metrics_of(two_requests(), main_processor="gpu", slo=slo)
    assert metrics["slo_attainment"] == good / 2
    # From the first arrival at 1 to the last token at 6.
    assert metrics["goodput_requests_per_s"] == good / 5
    assert metrics["goodput_tokens_per_s"] == tokens / 5


def test_a_request_without_a_token_kept_nothing() -> None:
    run = Run(outcome="interrupted", requests=(RequestRecord(request=0, arrival_s=0.0),))
    metrics = metrics_of(run, main_processor="gpu", slo=SloSpec(ttft_s=1.0))
    assert metrics["slo_attainment"] == 0.0
    assert "goodput_tokens_per_s" not in metrics


def test_what_the_encoding_costs_is_the_mean_over_the_loads() -> None:
    fine, coarse = measured()["cachegen"][0], measured()["cachegen"][4]
    loads = [
        RequestRecord(request=0, arrival_s=0.0, loaded_s=1.0, codec="cachegen", shares_by_level={0: 1.0}),
        RequestRecord(request=1, arrival_s=0.0, loaded_s=1.0, codec="cachegen", shares_by_level={4: 0.25}),
        # A further turn over the same context loads nothing.
        RequestRecord(request=2, arrival_s=2.0),
    ]
    metrics = metrics_of(Run(outcome="done", requests=tuple(loads)), main_processor="gpu")
    assert metrics["kv_relative_error"] == pytest.approx((fine.relative_error + coarse.relative_error / 2) / 2)
    assert metrics["kv_kl_nats"] == pytest.approx((fine.kl_nats + coarse.kl_nats / 4) / 2)


def test_a_real_runs_error_is_that_of_the_model_that_ran() -> None:
    loads = [
        RequestRecord(request=0, arrival_s=0.0, loaded_s=1.0, codec="cachegen", shares_by_level={0: 0.5, 1: 0.5}),
        RequestRecord(request=1, arrival_s=0.0, loaded_s=1.0, codec="cachegen", shares_by_level={0: 0.25}),
    ]
    run = Run(outcome="done", requests=tuple(loads), measured={"kv_relative_errors": [0.1, 0.2]})
    metrics = metrics_of(run, main_processor="gpu")
    # sqrt(0.5 x 0.01 + 0.5 x 0.04), and half of 0.1.
    assert metrics["kv_relative_error"] == pytest.approx((0.025**0.5 + 0.05) / 2)
    assert "kv_kl_nats" not in metrics


def test_a_codec_without_a_measurement_has_no_quality() -> None:
    load = RequestRecord(request=0, arrival_s=0.0, loaded_s=1.0, codec="unheard-of", shares_by_level={0: 1.0})
    assert "kv_relative_error" not in metrics_of(Run(outcome="done", requests=(load,)), main_processor="gpu")


def test_first_and_later_turns_stand_apart() -> None:
    def figures(turns: list[int]) -> dict[str, float]:
        asked = (
            RequestRecord(request=n, arrival_s=9.0 * n, turn=turn, first_token_s=9.0 * n + 4 - turn)
            for n, turn in enumerate(turns)
        )
        return metrics_of(Run(outcome="done", requests=tuple(asked), energy_j={}), main_processor="gpu")

    found = figures([0, 1, 2, 0, 1, 2])
    assert (found["ttft_first_turn_s"], found["ttft_later_turns_s"]) == (4.0, 2.5)
    assert "ttft_first_turn_s" not in figures([0, 0])
