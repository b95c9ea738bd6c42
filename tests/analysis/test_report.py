"""The HTML report: all that lies in folders, in one file that needs nothing else, with no text taken for code."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("plotly")
pytest.importorskip("itables")

from kvferry.analysis.dataset import read_points
from kvferry.analysis.folder import write_comparison
from kvferry.analysis.study_record import keys_in_order
from kvferry.api.report_page.charts import _joined, bars, claims_chart, scatter
from kvferry.api.report_page.page import _of_comparison, report
from kvferry.api.report_page.results import Comparison, Points, RunResult, Verdicts, results_in
from kvferry.specs.errors import InputError, KvferryError

HARMFUL = "</script><script>alert(1)</script><b>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind; the comparison's runs serve as runs, too."""
    from typer.testing import CliRunner

    from kvferry.cli.main import app

    top = tmp_path_factory.mktemp("results")
    small = ["--set", "workload.context=2Ki", "--plots"]
    done = CliRunner().invoke(
        app, ["compare", "quickstart", *small, "--systems", "ferry,stream-only", "-o", str(top / "compared")]
    )
    assert done.exit_code == 0, done.output
    points = pd.DataFrame(
        {
            "key": ["a", "b", "c"],
            "outcome": ["done", "done", "failed"],
            "why": [None, None, HARMFUL],
            "system": ["x", "y", "x"],
            "workload.context": [1024, 2048, 4096],
            "link.rtt_s": [0.004] * 3,
            "ttft_s": [1.0, 2.0, None],
            "version": ["0.2.0"] * 3,
        }
    )
    (top / "swept").mkdir()
    points.to_parquet(top / "swept/points.parquet")
    claim = {
        "id": "S1",
        "what": "a claim",
        "paper_low": 2.0,
        "paper_high": 2.0,
        "ours": 2.2,
        "verdict": "hit",
        "why": "so",
    }
    (top / "paper").mkdir()
    (top / "paper/report.json").write_text(json.dumps({"paper": "p", "claims": [claim], "cells": [], "tables": []}))
    return {name: top / name for name in ("compared", "swept", "paper")}


def test_what_lies_in_folders(folders: dict[str, Path]) -> None:
    found = results_in([*folders.values(), folders["compared"] / "ferry"])
    assert [type(one) for one in found] == [Comparison, Points, Verdicts, RunResult]
    assert isinstance(found[0], Comparison)
    assert [run.found["system"] for run in found[0].runs] == ["ferry", "stream-only"]
    # One level deep.
    top = folders["compared"].parent
    assert [type(one) for one in results_in([top])] == [Comparison, Verdicts, Points]


def test_one_file_that_needs_nothing_else(folders: dict[str, Path]) -> None:
    html = report(list(folders.values()))
    assert "default-src 'none'" in html
    assert not re.search(r"<(script|img|iframe)[^>]+src\s*=", html)
    assert not re.search(r"<link[^>]+href\s*=\s*[\"']?http", html)
    for told in (
        "TTFT, mean",
        "quickstart: ferry",
        "3 points",
        "2 done, 1 failed",
        "Where its numbers come from",
        "S1",
    ):
        assert told in html, told
    assert "trace: wifi-campus" in html


def test_systems_that_have_no_figures_say_why(tmp_path: Path) -> None:
    """One ran out of memory, another failed: both stand in the table, with outcomes and without figures."""
    spans = pd.DataFrame({"resource": ["gpu"], "label": ["A"], "start_s": [0.0], "end_s": [1.0], "n_bytes": [0.0]})
    runs = []
    for system, outcome, peak_bytes in (("good", "done", 3e9), ("large", "out_of_memory", 1e9)):
        found = {**_run({"memory_peak_bytes": peak_bytes}), "system": system, "outcome": outcome}
        found |= {"provenance": {}} | ({"why": "no room for KV"} if outcome != "done" else {})
        runs.append(RunResult(system, found, "name: s", spans, spans))
    section = _of_comparison(Comparison("two", runs, {"bad": "it raises"}), count())
    assert section.said == ["large: out of memory: no room for KV", "bad: failed: it raises"]
    ((_, table),) = section.tables
    for told in ('"outcome", "done", "out of memory", "failed"', '"memory peak", "3.00 GB", "", ""'):
        assert told in table.replace('\\"', '"'), told
    assert len(section.charts) == 1
    assert "large" not in section.charts[0]


def test_a_comparison_keeps_why_systems_failed(tmp_path: Path) -> None:
    write_comparison(tmp_path, {}, {}, {}, failed={"bad": "it raises"}, plots=False)
    (found,) = results_in([tmp_path])
    assert isinstance(found, Comparison)
    assert found.failed == {"bad": "it raises"}


def test_an_interval_stands_behind_its_figure_with_what_it_rests_on() -> None:
    found = {
        **_run({"throughput_tokens_per_s": 7.5}),
        "system": "kvswap",
        "provenance": {},
        "intervals": {"throughput_tokens_per_s": [7.5, 10.25]},
        "evidence": {"runtime": {"over": ["ideal", "kvswap-prototype"]}, "not_known": {"storage": "why not"}},
    }
    known = {**_run({"throughput_tokens_per_s": 8.0}), "system": "vllm", "provenance": {}}
    runs = [
        RunResult(
            "r",
            found=one,
            scenario="",
            spans=pd.DataFrame(),
            requests=pd.DataFrame(),
        )
        for one in (found, known)
    ]
    section = _of_comparison(Comparison("c", runs), count())
    assert "7.50 (7.50 to 10.2)" in section.tables[0][1]
    assert "7.50 to 10.2" in section.inner[0].tables[0][1] and "80 % interval" in section.inner[0].tables[0][1]
    for one in (section, section.inner[0]):
        (line,) = [said for said in one.said if said.startswith("80 % intervals")]
        assert "ideal, kvswap-prototype" in line
        assert "not in them: storage: why not" in one.said
    assert not any("intervals" in said for said in section.inner[1].said)


@pytest.mark.parametrize("ends", ["fast", [1.0], [1.0, "x"]])
def test_an_interval_that_is_none_is_named(folders: dict[str, Path], tmp_path: Path, ends: object) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["compared"] / "ferry", folder)
    found = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps(found | {"intervals": {"ttft_s": ends}}))
    with pytest.raises(InputError, match=r"metrics\.json: is damaged: intervals\.ttft_s is .* and no pair of numbers"):
        results_in([folder])


def test_the_mode_bar_has_room_of_its_own() -> None:
    """Of a low chart it has three columns."""
    assert bars({"a": 1.0}, "ttft_s").layout.margin.r >= 72
    assert 40 <= bars({str(n): 1.0 for n in range(9)}, "ttft_s").layout.margin.r < 72


def test_no_text_is_taken_for_code(folders: dict[str, Path]) -> None:
    html = report([folders["swept"]])
    assert "alert(1)" in html
    assert HARMFUL not in html


def points_with(folder: Path, **columns: object) -> Path:
    """A folder of two points, some of whose columns hold something else."""
    points = {"key": ["a", "b"], "outcome": ["done"] * 2, "why": [None] * 2, "system": ["x", "y"]}
    whole = points | {"version": ["0.2.0"] * 2, "ttft_s": [1.0, 2.0], "attended_share": [0.5, 1.0]} | columns
    pq.write_table(pa.table(whole), folder / "points.parquet")
    return folder


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("ttft_s", pa.array([[1.0, 2.0], [3.0]]), "list"),
        ("ttft_s", pa.array(["1", "2"]), "string; numbers would do"),
        ("ttft_s", pa.array([1, 2], pa.timestamp("ns")), "timestamp"),
        ("ttft_s", pa.array([1, 2], pa.decimal128(38, 10)), "decimal"),
        ("system", pa.array([b"\xff", b"a"]), "binary; text would do"),
        ("system", pa.array([{"a": 1}, {"a": 2}]), "struct"),
        ("system", pa.array([1, 2]), "int64; text would do"),
        ("link.outages", pa.array([[1], [2]]), "list<.*>; text, numbers or truth values would do"),
        ("outcome", pa.array(["done", None]), "rows without a value"),
    ],
)
@pytest.mark.parametrize("read", [results_in, lambda folders: read_points(folders[0])], ids=["report", "plot"])
def test_a_column_of_another_kind_is_named(
    tmp_path: Path, read: Callable[[list[Path]], object], column: str, values: pa.Array, kind: str
) -> None:
    points_with(tmp_path, **{column: values})
    with pytest.raises(KvferryError, match=rf"points\.parquet: .*its column {column} h\w+ {kind}"):
        read([tmp_path])


def test_infinite_and_missing_figures_are_shown(tmp_path: Path) -> None:
    endless = {"ttft_s": [float("inf"), float("-inf")], "regret": pa.array([None, float("nan")], pa.float64())}
    html = report([points_with(tmp_path, **endless, attended_share=pa.nulls(2))])
    assert "inf s" in html


def test_a_table_of_a_small_file_that_claims_many_rows_or_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000_001, pa.int8()), ["k"])
    pq.write_table(pa.table({"key": rows}), tmp_path / "order.parquet", compression="zstd")
    assert (tmp_path / "order.parquet").stat().st_size < 100_000
    with pytest.raises(InputError, match=r"order\.parquet: .*5,000,001 rows of 1 columns; 5,000,000 rows and"):
        keys_in_order(tmp_path)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int16()), ["x" * 600_000])
    pq.write_table(pa.table({"key": texts}), tmp_path / "order.parquet", compression="zstd")
    with pytest.raises(InputError, match=r"its texts have 1,200,000,000 bytes; 1,000,000,000 would do"):
        keys_in_order(tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    pq.write_table(pa.table([["a"], ["b"]], names=["key", "key"]), tmp_path / "order.parquet")
    with pytest.raises(InputError, match=r"two of its columns have one name"):
        keys_in_order(tmp_path)


HOSTILE = '"><img src=x onerror=alert(2)>$\\frac{$=1+1'


def test_no_name_of_a_run_is_taken_for_code(folders: dict[str, Path], tmp_path: Path) -> None:
    """Everywhere that a stranger's file is shown: its folder, sources, notes, figures, columns and values."""
    run = tmp_path / "results<script>alert(3)</script>"
    shutil.copytree(folders["compared"] / "ferry", run)
    found = json.loads((run / "metrics.json").read_text())
    found |= {"scenario": HARMFUL, "system": HOSTILE, "notes": [HARMFUL, HOSTILE], "versions": {HARMFUL: HOSTILE}}
    found["provenance"] = {HARMFUL: {HOSTILE: HARMFUL}}
    found["metrics"] |= {HARMFUL: 1.0, HOSTILE: 2.0}
    (run / "metrics.json").write_text(json.dumps(found))
    (run / "scenario.yaml").write_text(f"name: {HARMFUL}\n# {HOSTILE}")
    spans = pd.read_parquet(run / "spans.parquet")
    spans["label"] = HARMFUL
    spans["resource"] = HOSTILE
    spans.to_parquet(run / "spans.parquet")
    points = pd.read_parquet(folders["swept"] / "points.parquet")
    points["system"], points[f"workload.{HARMFUL}"], points[f"link.{HOSTILE}"] = (
        [HARMFUL, HOSTILE, "x"],
        HOSTILE,
        [1, 2, 3],
    )
    (swept := tmp_path / "swept").mkdir()
    points.to_parquet(swept / "points.parquet")
    html = report([run, swept])
    assert "alert(1)" in html
    assert HARMFUL not in html
    assert "<img src=x" not in html
    assert "<script>alert" not in html


TABLE = pd.DataFrame({"key": ["a"]})


def _run(metrics: dict[str, object]) -> dict[str, object]:
    return {"scenario": "s", "system": "x", "outcome": "done", "metrics": metrics}


def _json(folder: Path, name: str, found: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "scenario.yaml").write_text("name: s")
    (folder / f"{name}.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: None, "there is no such folder"),
        (lambda folder: folder.mkdir(), "holds no results"),
        (lambda folder: (folder.mkdir(), (folder / "points.parquet").write_bytes(b"PAR1"))[0], "cannot be read"),
        (lambda folder: (folder.mkdir(), (folder / "metrics.json").write_text("{"))[0], "is damaged"),
        (lambda folder: (folder.mkdir(), (folder / "report.json").write_text("[]"))[0], "holds no object"),
        (lambda folder: (folder.mkdir(), (folder / "metrics.json").write_text("{}"))[0], r"scenario\.yaml: cannot be"),
        (lambda folder: _json(folder, "comparison", {}), "comparison.json: is damaged: systems is missing"),
        (lambda folder: _json(folder, "comparison", {"systems": ["a"]}), r"damaged: systems is \['a'\]"),
        (lambda folder: _json(folder, "comparison", {"systems": {}, "failed": 3}), "damaged: failed is 3"),
        (lambda folder: _json(folder, "metrics", {}), "metrics.json: is damaged: scenario is missing"),
        (lambda folder: _json(folder, "metrics", _run({"ttft_s": "soon"})), "metrics.ttft_s is 'soon' and no number"),
        (lambda folder: _json(folder, "metrics", _run({}) | {"provenance": 1}), "provenance is 1"),
        (lambda folder: _json(folder, "report", {"claims": [{"id": "A"}]}), r"claims\.0\.what is missing"),
        (lambda folder: _json(folder, "report", {"claims": [1]}), r"claims\.0 is 1 and no object"),
        (lambda folder: (folder.mkdir(), TABLE.to_parquet(folder / "points.parquet"))[0], "no column outcome, why"),
    ],
)
def test_folders_that_are_none(tmp_path: Path, make, told: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "some")
    with pytest.raises(InputError, match=told):
        report([tmp_path / "some"])


def test_spans_too_close_to_be_seen_apart_are_one_box() -> None:
    """A run of 10 s is seen in steps of 5 ms: three spans 1 ms apart are one box, one 20 ms on is another, and one of
    1 s stays by itself."""
    spans = pd.DataFrame(
        {
            "resource": ["gpu"] * 5 + ["link"],
            "label": ["Prefill"] * 5 + ["Fetch"],
            "start_s": [0.0, 0.002, 0.004, 0.025, 0.027, 0.0],
            "end_s": [0.001, 0.003, 0.005, 0.026, 1.027, 10.0],
            "n_bytes": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        }
    )
    boxes = _joined(spans)
    found = boxes[["resource", "start_s", "end_s", "spans", "n_bytes"]].to_numpy().tolist()
    assert found == [
        ["gpu", 0.0, 0.005, 3, 6.0],
        ["gpu", 0.025, 0.026, 1, 4.0],
        ["gpu", 0.027, 1.027, 1, 5.0],
        ["link", 0.0, 10.0, 1, 6.0],
    ]


def test_what_points_share_and_what_some_lack(tmp_path: Path) -> None:
    """Of four points two have a rate, two a trace, and one has no schedule: nothing of it is shared, all are drawn."""
    points = pd.DataFrame(
        {
            "key": list("abcd"),
            "outcome": "done",
            "why": None,
            "system": "x",
            "workload.context": [1024, 2048, 1024, 2048],
            "link.rate_bytes_per_s": [1e6, 1e6, None, None],
            "link.trace": [None, None, "wifi", "wifi"],
            "policies.schedule.name": ["greedy", None, "greedy", "greedy"],
            "link.rtt_s": 0.004,
            "ttft_s": [1.0, 2.0, 3.0, 4.0],
            "version": "0.2.0",
        }
    )
    (tmp_path / "swept").mkdir()
    points.to_parquet(tmp_path / "swept/points.parquet")
    page = report([tmp_path / "swept"])
    shared = re.search(r"What all points share</summary>\s*<pre>(.*?)</pre>", page, re.S)
    assert shared is not None
    assert shared[1].strip().splitlines() == ["link.rtt_s: 0.004", "system: x"]
    drawn = scatter(points, ["workload.context", "link.rate_bytes_per_s"], ["ttft_s"], "link.trace")
    assert {trace.name: len(trace.x) for trace in drawn.data} == {"not set": 2, "wifi": 2}
    labels = [button.label for button in drawn.layout.updatemenus[1].buttons]
    assert labels[1].endswith("; 2 of 4 points have none")


def test_claims_are_compared_as_verdicts_compare_them() -> None:
    """A sweep at either end, an interval at the nearer one, 1 inside; in the order of the paper."""
    printed = {"what": "", "paper_low": 1.8, "paper_high": 19.1, "ours": 17.2, "ours_low": 0.9, "ours_high": 38.2}
    bound = {"what": "", "paper_low": 10_000.0, "paper_high": 1e9, "ours": 1_000.0}
    claims = [
        {"id": "K10", "statistic": "sweep", "verdict": "miss", "fitted": False, **printed},
        {"id": "D11", "statistic": "bound", "verdict": "miss", "fitted": False, **bound},
        {"id": "P6", "statistic": "bound", "verdict": "hit", "fitted": True, **bound, "paper_low": 0.0},
    ]
    hit, fitted, missed = claims_chart(claims).data
    assert list(missed.x) == [0.5, 2.0, 0.1]
    assert (list(fitted.x), fitted.marker.symbol, fitted.name, list(hit.x)) == ([1.0], "square", "hit, fitted", [])


def test_small_numbers_of_a_long_table_stay() -> None:
    from itertools import count

    from kvferry.api.report_page.page import _table

    assert "2.07e-10" in _table(pd.DataFrame({"slot_s": [2.07e-10] * 1001}), count())


def test_charts_are_labelled_with_units() -> None:
    drawn = bars({"slow": 2.0, "fast": 1.0}, "ttft_s")
    assert list(drawn.data[0].y) == ["fast", "slow"]
    assert drawn.layout.xaxis.title.text == "TTFT, mean (s)"
    assert list(bars({"few": 1.0, "many": 2.0}, "throughput_tokens_per_s").data[0].y) == ["many", "few"]
    table = pd.DataFrame(
        {"system": ["a", "b"], "workload.context": [1, 2], "ttft_s": [1.0, 2.0], "energy_j": [3.0, 4.0]}
    )
    points = scatter(table, ["workload.context"], ["ttft_s", "energy_j"], "system")
    assert len(points.data) == 2
    assert len({trace.marker.symbol for trace in points.data}) == 2
    assert [button.label for button in points.layout.updatemenus[0].buttons] == ["TTFT, mean (s)", "energy/request (J)"]
    claims = [
        {"id": "A", "what": "", "paper_low": 1.0, "paper_high": 2.0, "ours": 2.0, "verdict": "hit, fitted"},
        {"id": "B", "what": "", "paper_low": 2.0, "paper_high": 2.0, "ours": 3.0, "verdict": "miss"},
        {"id": "C", "what": "", "paper_low": 0.0, "paper_high": 0.0, "ours": 3.0, "verdict": "miss"},
    ]
    hit, missed = claims_chart(claims).data
    assert (list(hit.y), list(hit.x), hit.marker.symbol) == (["A"], [1.0], "circle")
    assert (list(missed.y), list(missed.x), missed.marker.symbol) == (["B"], [1.5], "circle-open")
