"""The head of a report: one table over all results, names that tell them apart, and charts that show something."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("plotly")
pytest.importorskip("itables")

from kvferry.api.report_page.charts import bars, label_of, scatter
from kvferry.api.report_page.names import names_of
from kvferry.api.report_page.overview import overview_of
from kvferry.api.report_page.page import _of_comparison, _of_points, report
from kvferry.api.report_page.results import Comparison, Points, RunResult

NOTHING = pd.DataFrame({"resource": [], "label": [], "start_s": [], "end_s": [], "n_bytes": []})


def run(system: str = "ferry", *, setting: str = "", measured: bool = True, **metrics: float) -> RunResult:
    device = {"name": "board", "measured": measured}
    found = {"scenario": "s", "system": system, "outcome": "done", "metrics": metrics, "intervals": {}, "evidence": {}}
    found |= {"provenance": {"device": device}, "versions": {}, "notes": []}
    return RunResult(f"runs-{system}{setting}", found, f"name: s\nlink: {{rtt: 4 ms}}\n{setting}", NOTHING, NOTHING)


def points(**columns: list[object]) -> Points:
    table = {"key": list("abcd"), "outcome": ["done"] * 4, "why": [None] * 4, "version": ["1"] * 4} | columns
    return Points("swept", pd.DataFrame(table), not_measured=["phone"])


def test_every_system_of_every_result_has_a_row_with_its_mark() -> None:
    sparse = run("quest", ttft_s=1.0, tpot_s=0.1, attended_share=0.1, attended_tokens=100.0)
    both = Comparison("both", [run("vllm", ttft_s=2.0, tpot_s=0.2), sparse], {"kvswap": "no storage"})
    swept = points(system=["a", "a", "b", "b"], ttft_s=[1.0, 3.0, 4.0, None])
    found = overview_of([run(ttft_s=0.5, measured=False), both, swept], ["one", "both", "swept"])
    assert found is not None
    assert [row.cells[:4] for row in found.rows] == [
        ["one", "ferry", "done", "500 ms"],
        ["both", "vllm", "done", "2.00 s"],
        ["both", "quest * (100 of 1,000 tokens)", "done", "1.00 s"],
        ["both", "kvswap", "failed", ""],
        ["swept", "a", "medians of 2 points", "2.00 s"],
        ["swept", "b", "medians of 2 points", "4.00 s"],
    ]
    assert [row.part for row in found.rows] == [1, 2, 2, 2, 3, 3]
    assert found.heads[:5] == ["result", "system", "outcome", "TTFT, mean", "TPOT"]
    assert found.notes[-1] == "not measured: board, phone; their figures are from data sheets and papers"
    assert any(note.startswith("* attends to a part of the tokens") for note in found.notes)


def test_quality_stands_beside_speed() -> None:
    asked = run("kvswap", tpot_s=0.1, attended_share=0.1, attended_tokens=9.0, agreement_share=0.75, kl_nats=0.5)
    found = overview_of([asked, points(system=["a"] * 4, kl_nats=[0.1, 0.3, 0.2, None])], ["one", "swept"])
    assert found is not None
    assert found.heads[-3:] == ["of all tokens", "agrees with full attention", "KL from full attention, nats"]
    assert [row.cells[-2:] for row in found.rows] == [["75.0 %", "0.50"], ["", "0.20"]]


def test_a_rate_of_one_token_is_no_column() -> None:
    found = overview_of([run(ttft_s=0.5, throughput_tokens_per_s=2.0)], ["one"])
    assert found is not None and found.heads == ["result", "system", "outcome", "TTFT, mean"]


def test_energy_of_devices_with_a_cloud_stands_behind_that_of_both_together() -> None:
    cloud = run("cloud-only", ttft_s=0.8, energy_j=15.1, cloud_energy_j=3955.0, total_energy_j=3970.1)
    device = run("pd-device", ttft_s=0.9, energy_j=53.7, cloud_energy_j=2526.3, total_energy_j=2580.0)
    both = Comparison("both", [cloud, device])
    found = overview_of([both], ["both"])
    assert found is not None
    assert found.heads[3:] == ["TTFT, mean", "both together", "devices' energy/request"]
    assert [row.cells[4:] for row in found.rows] == [["3.97 kJ", "15.1 J"], ["2.58 kJ", "53.7 J"]]
    section = _of_comparison(both, iter(range(99)))
    tables = [text for part in (section, *section.inner) for _, text in part.tables]
    assert sum("devices' energy" in text for text in tables) == 3
    assert not any('"energy/request' in text.replace('\\"', '"') for text in tables)
    # Of a single machine it is all.
    found = overview_of([run(ttft_s=0.5, energy_j=1.0)], ["one"])
    assert found is not None and found.heads[3:] == ["TTFT, mean", "energy/request"]


def test_axes_of_charts_say_whose_energy_it_is() -> None:
    assert label_of("energy_j", True) == "devices' energy/request (J)"
    assert label_of("energy_j", False) == "energy/request (J)"
    alone = bars({"a": 1.0, "b": 2.0}, "energy_j", True)
    assert alone.layout.xaxis.title.text == "devices' energy/request (J)"
    table = pd.DataFrame({"x": [1, 2], "energy_j": [1.0, 2.0], "total_energy_j": [9.0, 8.0]})
    assert scatter(table, ["x"], ["energy_j"], None).layout.yaxis.title.text == "devices' energy/request (J)"


def test_names_say_what_was_set() -> None:
    runs = [run(setting="workload: {context: 1024}"), run(setting="workload: {context: 2048}"), run("sparkv")]
    assert names_of(runs) == [
        "s: ferry, workload.context 1024",
        "s: ferry, workload.context 2048",
        "s: sparkv",
    ]
    assert names_of([run(), run()]) == ["s: ferry (runs-ferry)", "s: ferry (runs-ferry) (runs-ferry, 2)"]


def test_names_say_what_is_unlike_most() -> None:
    settings = [
        "policies: {serving: {batched_prefill: true}}",
        "workload: {cells: 4}",
        "machines: {prefill: {outages: [{start: 60 s, duration: 120 s, instance: null}, {start: 9 s, duration: 1 s}]}}",
        "a: {b: 1, c: 1, d: 1, e: 1}",
    ]
    assert names_of([run(setting=one) for one in ["", *settings]]) == [
        "s: ferry (runs-ferry)",
        "s: ferry, policies.serving.batched_prefill true",
        "s: ferry, workload.cells 4",
        "s: ferry, machines.prefill.outages start 60 s, duration 120 s; start 9 ...",
        "s: ferry, a.b 1, a.c 1, a.d 1, 1 more",
    ]


def test_no_chart_of_a_constant_or_of_a_rate_of_one_token() -> None:
    def charted(*runs: RunResult) -> list[str]:
        section = _of_comparison(Comparison("c", runs), iter(range(99)))
        return [found[1] for chart in section.charts if (found := re.search(r'"title":\{"text":"([^"]*)"', chart))]

    alike = {"memory_peak_bytes": 1e9, "energy_j": 3.0}
    a, b = (run(name, ttft_s=s, throughput_tokens_per_s=1 / s, **alike) for name, s in (("a", 1.0), ("b", 2.0)))
    assert charted(a, b) == ["TTFT, mean (s)"]
    several = (
        run(name, ttft_s=1.0, tpot_s=s, throughput_tokens_per_s=1 / s, **alike) for name, s in (("a", 1.0), ("b", 2.0))
    )
    assert charted(*several) == ["TPOT (s)", r"tokens\u002fs"]


def test_a_comparison_and_a_sweep_say_what_was_not_measured_and_mark_what_is_sparse() -> None:
    said = _of_comparison(Comparison("c", [run("a", ttft_s=1.0, measured=False)]), iter(range(99))).said
    assert said[0] == "board is not a measured device: its figures are from data sheets and papers."
    swept = points(
        system=["vllm", "quest"] * 2, attended_share=[1.0, 0.1] * 2, ttft_s=[1.0, 2.0, 3.0, 4.0], seed=[0, 0, 1, 1]
    )
    section = _of_points(swept, iter(range(99)))
    assert section.said[0] == "phone is not a measured device: its figures are from data sheets and papers."
    assert "* attends to a part of the tokens" in section.said and "quest *" in section.tables[0][1]


def test_charts_and_tables_wait_until_they_are_seen(tmp_path: Path) -> None:
    swept = points(system=["a", "b"] * 2, ttft_s=[1.0, 2.0, 3.0, 4.0], **{"workload.context": [1, 2, 3, 4]})
    (tmp_path / "swept").mkdir()
    swept.table.to_parquet(tmp_path / "swept/points.parquet")
    page = report([tmp_path / "swept"])
    at_once = re.sub(r"<template.*?</template>", "", page, flags=re.DOTALL)
    assert "Plotly.newPlot" in page and "Plotly.newPlot" not in at_once.replace(_library(at_once), "")
    assert "new ITable" in page and "new ITable" not in at_once
    # What is there at once are the figures of all results.
    assert "medians of 2 points" in at_once and json.dumps("swept")[1:-1] in at_once


def _library(page: str) -> str:
    found = re.search(r'<script type="text/plain" id="plotly">.*?</script>', page, re.DOTALL)
    assert found
    return found[0]


def test_each_energy_says_whose_it_is() -> None:
    of_both = {"energy_j": [3.0, 4.0] * 2, "cloud_energy_j": [5.0] * 4, "total_energy_j": [8.0, 9.0] * 2}
    said = _of_points(points(system=["a", "b"] * 2, **of_both), iter(range(99))).said
    told = "energy_j: devices' energy/request, cloud_energy_j: cloud's energy/request, total_energy_j: both together"
    assert f"Whose energy it is: {told}." in said
    alone = _of_points(points(system=["a", "b"] * 2, energy_j=of_both["energy_j"]), iter(range(99))).said
    assert not any("Whose" in line for line in alone)
    assert label_of("energy_cpu_j", True) == "devices' energy/request: cpu (J)"
    assert label_of("energy_cpu_j", False) == "energy/request: cpu (J)"
