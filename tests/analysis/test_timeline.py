"""The Chrome trace: valid by the format's own rules, and telling what happened."""

import itertools
import json
from typing import Any

import pytest

from kvferry.analysis.timeline import DEVICE, NETWORK, REQUESTS, chrome_trace, resources_of
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run

# What each phase of event must carry, by the Trace Event Format: metadata, complete, counter.
FIELDS = {
    "M": {"ph": str, "pid": int, "name": str, "args": dict},
    "X": {"ph": str, "pid": int, "tid": int, "name": str, "ts": float, "dur": float, "cat": str, "args": dict},
    "C": {"ph": str, "pid": int, "name": str, "ts": float, "args": dict},
}


def run() -> Run:
    request = RequestRecord(
        request=3, arrival_s=0.5, loaded_s=2.0, first_token_s=2.5, token_times_s=(2.5, 3.0), units_computed=1
    )
    return Run(
        outcome="done",
        requests=(request,),
        spans=(
            Span("gpu", "Project", 0.5, 1.0, request=3),
            Span("gpu", "Prefill", 2.0, 2.5, request=3),
            # two flows that share the link
            Span("link", "fetch", 0.5, 1.5, 100.0, 3),
            Span("link", "fetch", 1.0, 2.0, 100.0, 4),
            Span("decompress", "Decompress", 1.5, 1.6),
        ),
        memory_peak_bytes=7.0,
        link_times_s=(0.0, 1.0, 2.0, 3.0),
        link_bytes_per_s=(125_000.0, 125_000.0, 250_000.0),
    )


def events(of: Run) -> list[dict[str, Any]]:
    trace = json.loads(chrome_trace(of))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    return trace["traceEvents"]


def test_every_event_is_valid_by_the_format() -> None:
    for event in events(run()):
        fields = FIELDS[event["ph"]]
        for name, kind in fields.items():
            value = event[name]
            assert isinstance(value, kind) or (kind is float and isinstance(value, int)), event
        assert set(event) <= set(fields) | {"tid"}
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["tid"] > 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_slices_tell_the_spans() -> None:
    found = [e for e in events(run()) if e["ph"] == "X" and e["pid"] != REQUESTS]
    assert [(e["cat"], e["name"], e["ts"], e["dur"]) for e in found] == [
        ("link", "fetch", 500_000.0, 1_000_000.0),
        ("link", "fetch", 1_000_000.0, 1_000_000.0),
        ("decompress", "Decompress", 1_500_000.0, 100_000.0),
        ("gpu", "Project", 500_000.0, 500_000.0),
        ("gpu", "Prefill", 2_000_000.0, 500_000.0),
    ]
    assert found[0]["args"] == {"bytes": 100.0, "request": 3}
    assert {e["pid"] for e in found} == {DEVICE, NETWORK}


def test_overlapping_flows_get_their_own_threads() -> None:
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events(run()) if e["ph"] == "M" and e["name"] == "thread_name"
    }
    assert sorted(names.values()) == ["decompress", "gpu", "link", "link (2)", "request 3"]
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events(run()):
        if event["ph"] == "X":
            by_thread.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in by_thread.values():
        slices.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(slices))
    assert set(by_thread) == set(names)


def test_a_request_by_its_phases() -> None:
    phases = [(e["name"], e["ts"], e["dur"]) for e in events(run()) if e["ph"] == "X" and e["pid"] == REQUESTS]
    assert phases == [("load", 5e5, 1.5e6), ("first token", 2e6, 5e5), ("decode", 2.5e6, 5e5)]


def test_counters_change_when_the_rate_does() -> None:
    counters: dict[str, list[tuple[float, float]]] = {}
    for event in events(run()):
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append((event["ts"], event["args"]["Mbit/s"]))
    # 125 kB/s are 1 Mbit/s; equal neighbours are one step; zero ends it.
    assert counters["link rate"] == [(0.0, 1.0), (2e6, 2.0), (3e6, 0.0)]
    # 100 bytes over a second each: 800 bit/s, twice that while both run.
    assert counters["delivered rate"] == [
        (0.0, 0.0), (5e5, pytest.approx(0.0008)), (1e6, pytest.approx(0.0016)), (1.5e6, pytest.approx(0.0008)),
        (2e6, 0.0), (3e6, 0.0),
    ]  # fmt: skip


def test_neighbours_still_touch_after_rounding() -> None:
    third = 1 / 3
    spans = tuple(Span("gpu", "Project", i * third, (i + 1) * third) for i in range(300))
    slices = [(e["ts"], e["dur"]) for e in events(Run(outcome="done", spans=spans)) if e["ph"] == "X"]
    assert all(round(a[0] + a[1], 3) == b[0] for a, b in itertools.pairwise(slices))


def test_resources_in_the_order_of_the_data() -> None:
    names = ["npu", "copy", "cpu", "link", "storage", "gpu", "decompress"]
    assert resources_of([Span(name, "", 0.0, 1.0) for name in names]) == [
        "link", "decompress", "copy", "storage", "cpu", "gpu", "npu"
    ]  # fmt: skip


def test_equal_runs_give_equal_text_and_an_empty_one_is_valid() -> None:
    assert chrome_trace(run(), title="a") == chrome_trace(run(), title="a")
    assert [e for e in events(Run(outcome="out_of_memory")) if e["ph"] != "M"] == []
