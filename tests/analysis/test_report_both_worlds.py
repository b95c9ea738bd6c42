"""Reports show what fidelity found: figures and quality of both worlds. A damaged file gets one line."""

import json
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from kvferry.api.report_page.both_worlds import beside_each_other
from kvferry.api.report_page.page import report
from kvferry.api.report_page.results import BothWorlds, results_in
from kvferry.specs.errors import InputError

KL = {"simulated": None, "measured": 0.25, "error": None, "spread": None, "alike": False, "how": "not modelled"}
MASS = {"simulated": 0.75, "measured": 0.6, "error": 0.25, "spread": None, "alike": False, "how": "an indication"}
BOTH: dict[str, object] = {
    "study": "s",
    "runs": 3,
    "rows": [],
    "summary": {"headline": "ttft_s", "error_median": 0.25, "error_largest": 0.25, "beyond": 1},
    "remarks": ["a remark"],
    "provenance": {"device": {"name": "board", "measured": False}},
}


def both(**row: object) -> dict[str, object]:
    figures = {"ttft_s": {"simulated": 1.5, "measured": 2.0, "error": -0.25, "spread": 0.125}}
    return BOTH | {"rows": [{"name": "s-x", "system": "x", "metrics": figures, **row}]}


def test_both_worlds_stand_beside_each_other_with_the_quality_that_was_measured(tmp_path: Path) -> None:
    (tmp_path / "fidelity.json").write_text(json.dumps(both(quality={"kl_nats": KL, "attention_mass": MASS})))
    (found,) = results_in([tmp_path])
    assert isinstance(found, BothWorlds)
    tables = beside_each_other(found.found)
    assert tables["Figures"].to_numpy().tolist() == [["s-x", "TTFT, mean", "1.50 s", "2.00 s", "-25.0 %", "12.5 %"]]
    assert tables["Quality"].to_numpy().tolist() == [
        ["s-x", "KL from full attention, nats", "", "0.25", "", ""],
        ["s-x", "attention mass", "75.0 %", "60.0 %", "25.0 % ~", ""],
    ]
    page = report([tmp_path])
    for said in (
        "s: both worlds",
        "measured, 3 runs",
        "TTFT, mean: median error 25.0 %, largest 25.0 %; 1 beyond 15 % and twice their spread.",
        "~ attention mass, modelled: an indication",
        "not modelled: KL from full attention, nats",
        "a remark",
        "not measured: board",
    ):
        assert said in page


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "fidelity.json: is damaged: study is missing"),
        (BOTH | {"rows": [1]}, r"rows\.0 is 1 and no object"),
        (both(quality={"kl_nats": 1}), r"rows\.0\.quality\.kl_nats is 1 and no object"),
        (both(quality={"luck": KL}), r"rows\.0\.quality\.luck is None"),
        (both(metrics={"ttft_s": {}}), r"rows\.0\.metrics\.ttft_s\.measured is missing"),
        (BOTH | {"summary": {"error_median": "x"}}, r"summary\.headline is missing"),
        (BOTH | {"provenance": {}}, r"provenance\.device is missing"),
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, found: dict[str, object], told: str) -> None:
    (tmp_path / "fidelity.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=told):
        report([tmp_path])
