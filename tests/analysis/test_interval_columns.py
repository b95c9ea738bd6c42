"""Points of sweeps and searches have intervals where it is only assumed what software takes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tiny import DECODING, changed
from typer.testing import CliRunner

import kvferry
from kvferry.analysis.bar_plots import bar
from kvferry.analysis.interval_columns import COLUMNS
from kvferry.analysis.plots import Axis, line, spreads
from kvferry.cli.main import app


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(
        yaml.safe_dump(changed(DECODING, device={"extends": "jetson-orin-nx-sparkv", "storage": "nvme"}))
    )
    described = {
        "name": "systems",
        "base": "./base.yaml",
        "axes": {"system": ["kvswap", "vllm"]},
        "plots": [{"kind": "bar", "x": "system", "y": "tpot_s"}],
    }
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(described))
    return file


def test_a_sweeps_points_have_the_intervals_of_single_runs(study: Path) -> None:
    swept = kvferry.sweep(study, output="out", jobs=1)
    points = swept.points.set_index("system")
    intervals = kvferry.run("base.yaml", system="kvswap").intervals
    for key in ("tpot_s", "throughput_tokens_per_s", "decode_tokens_per_s"):
        low, high = points.loc["kvswap", f"low_{key}"], points.loc["kvswap", f"high_{key}"]
        assert (low, high) == intervals[key] and low < high
    assert pd.isna(points.loc["vllm", "low_tpot_s"]), "nothing that software manages outside of memory"
    assert COLUMNS in swept.remarks
    shown = CliRunner().invoke(app, ["sweep", str(study), "-o", "out"])
    assert COLUMNS.split(":")[0] in shown.stdout


def test_asked_for_a_sweeps_points_have_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(yaml.safe_dump({"name": "m", "base": "decode", "axes": {"device": ["rtx-4060"]}}))
    (point,) = kvferry.sweep("study.yaml", output="out", jobs=1, intervals=True).points.to_dict("records")
    intervals = kvferry.run("decode", {"device": "rtx-4060"}).intervals
    for key in ("ttft_s", "tpot_s", "decode_tokens_per_s", "end_to_end_tokens_per_s", "energy_j"):
        assert (point[f"low_{key}"], point[f"high_{key}"]) == pytest.approx(intervals[key]), key


def test_they_can_be_left_out(study: Path) -> None:
    shown = CliRunner().invoke(app, ["sweep", str(study), "-o", "out", "--jobs", "1", "--no-intervals", "--no-plots"])
    assert shown.exit_code == 0, shown.output
    found = kvferry.sweep(study, output="out", jobs=1, plots=False)
    assert not any(column.startswith("low_") for column in found.points.columns)
    assert COLUMNS not in found.remarks


def test_a_front_has_them(study: Path) -> None:
    pytest.importorskip("optuna")
    described = {"base": "./base.yaml", "space": {"system": ["kvswap"]}, "objectives": ["tpot_s"], "points": 1}
    Path("search.yaml").write_text(yaml.safe_dump(described | {"sampler": "random"}))
    for _ in range(2):  # the second one takes what is there
        shown = CliRunner().invoke(app, ["search", "search.yaml", "-o", "found", "--jobs", "1"])
        assert re.search(r"\(\S+ .?s to ", shown.stdout), shown.output
    (best,) = kvferry.search("search.yaml", output="found", jobs=1).summary["front"]
    assert tuple(best["intervals"]["tpot_s"]) == kvferry.run("base.yaml", system="kvswap").intervals["tpot_s"]


def test_a_band_reaches_from_end_to_end_of_intervals_by_hand() -> None:
    points = pd.DataFrame(
        {"x": [1, 1, 2], "y_s": [2.0, 4.0, 5.0], "low_y_s": [1.0, 3.0, None], "high_y_s": [8.0, 6.0, None]}
    )
    found = spreads(points, Axis("x", "x"), Axis("y_s", "y", scale=10), "min-max")
    assert found == {1: (10, 30, 80), 2: (50, 50, 50)}
    axis = line(points, Axis("x", "x"), Axis("y_s", "y"), band="min-max").axes[0]
    assert "median, band: min-max of 80 % intervals" in [text.get_text() for text in axis.texts]


@pytest.mark.parametrize("draw", [line, bar])
def test_a_series_without_a_band_is_not_taken_for_exact(draw: Callable[..., Any]) -> None:
    points = pd.DataFrame(
        {
            "system": ["kvswap", "quest", "quest *"] * 2,
            "x": [1] * 3 + [2] * 3,
            "y_s": [2.0, 4.0, 5.0, 3.0, 5.0, 6.0],
            "low_y_s": [None, 3.0, None, None, 4.0, 5.0],
            "high_y_s": [None, 8.0, None, None, 9.0, 7.0],
        }
    )
    x, y = Axis("x", "x"), Axis("y_s", "y")
    axis = draw(points, x, y, by="system", band="min-max").axes[0]
    said = [text.get_text() for text in axis.texts]
    assert any(one.endswith("min-max of 80 % intervals; without one, though not exact: kvswap") for one in said), said
    known = points[points["system"] != "kvswap"]
    axis = draw(known, x, y, by="system", band="min-max").axes[0]
    assert any(text.get_text().endswith("min-max of 80 % intervals") for text in axis.texts)


def test_bars_of_systems_have_the_intervals_that_are_known() -> None:
    points = pd.DataFrame({"system": ["a", "b"], "y_s": [2.0, 4.0], "low_y_s": [None, 3.0], "high_y_s": [None, 8.0]})
    axis = bar(points, Axis("system", "system"), Axis("y_s", "y"), band="min-max").axes[0]
    said = "bar: median, whisker: min-max of 80 % intervals; without one, though not exact: a"
    assert said in [text.get_text() for text in axis.texts]
    (whiskers,) = axis.collections
    assert [[tuple(end) for end in one] for one in whiskers.get_segments()] == [[(0, 2), (0, 2)], [(1, 3), (1, 8)]]


def test_a_sweeps_pictures_name_the_study_and_what_was_not_measured(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = []
    monkeypatch.setitem(
        kvferry.analysis.study_plots._DRAWN, "bar", lambda *_, title, **__: titles.append(title) or line(*_POINT)
    )
    kvferry.sweep(study, output="out", jobs=1, intervals=False)
    assert titles == ["systems (jetson-orin-nx-sparkv: not measured)"]


_POINT = pd.DataFrame({"x": [1], "y": [1.0]}), Axis("x", "x"), Axis("y", "y")
