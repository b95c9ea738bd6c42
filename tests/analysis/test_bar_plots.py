"""Bars and stacks: heights by hand, whiskers where there is a spread, patterns that need no colour."""

import pandas as pd
import pytest

from kvferry.analysis.bar_plots import bar, stack
from kvferry.analysis.plots import Axis
from kvferry.analysis.study_plots import draw_plots
from kvferry.analysis.study_spec import PlotSpec
from kvferry.specs.errors import InputError

TABLE = pd.DataFrame(
    {
        "outcome": ["done"] * 6,
        "key": list("abcdef"),
        "system": ["x", "x", "x", "y", "y", "y"],
        "seed": [0, 1, 2, 0, 1, 2],
        "ttft_s": [1.0, 2.0, 9.0, 4.0, 4.0, 4.0],
        "energy_gpu_j": [3.0, 3.0, 3.0, 1.0, 1.0, 1.0],
        "energy_network_j": [1.0, 1.0, 1.0, None, None, None],
    }
)


def _heights(figure) -> list[list[float]]:  # type: ignore[no-untyped-def]
    return [[float(one.get_height()) for one in bars] for bars in figure.axes[0].containers if hasattr(bars, "patches")]


def test_bars_are_medians_and_whiskers_the_spread() -> None:
    drawn = bar(TABLE, Axis("system", "system"), Axis("ttft_s", "TTFT (ms)", 1000.0), band="min-max")
    assert _heights(drawn) == [[2000.0, 4000.0]]
    (whiskers,) = [one for one in drawn.axes[0].containers if not hasattr(one, "patches")]
    lines = whiskers.lines[2][0].get_segments()
    assert [[float(end[1]) for end in line] for line in lines] == [[1000.0, 9000.0], [4000.0, 4000.0]]
    assert drawn.axes[0].get_ylabel() == "TTFT (ms)"


def test_bars_say_what_they_are() -> None:
    def said(figure) -> list[str]:  # type: ignore[no-untyped-def]
        return [text.get_text() for text in figure.axes[0].texts]

    x, y = Axis("system", "system"), Axis("ttft_s", "TTFT (s)")
    assert said(bar(TABLE, x, y)) == ["bar: median, whisker: p5-p95"]
    assert said(bar(TABLE, x, y, band="min-max")) == ["bar: median, whisker: min-max"]
    assert said(bar(TABLE[TABLE["system"] == "y"], x, y)) == ["bar: median"]
    assert said(stack(TABLE, x, [Axis("energy_gpu_j", "gpu (J)"), Axis("energy_network_j", "network (J)")])) == [
        "means"
    ]


@pytest.mark.parametrize(
    "keys", [{"kind": "bar", "x": "a", "y": "b"}, {"kind": "stack", "x": "a", "parts": ("b", "c")}]
)
def test_bars_take_no_logarithmic_axis(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="begin at zero"):
        PlotSpec(**keys, log=("y",))  # type: ignore[arg-type]


def test_long_names_are_slanted_where_panels_are_narrow() -> None:
    names = ["local-prefill", "stream-only", "ferry"]
    table = pd.DataFrame({"system": names * 3, "panel": [f"p{n}" for n in range(3) for _ in names], "ttft_s": 1.0})
    x, y = Axis("system", "system"), Axis("ttft_s", "TTFT (s)")

    def slant(figure) -> float:  # type: ignore[no-untyped-def]
        return float(figure.axes[0].get_xticklabels()[0].get_rotation())

    assert slant(bar(table, x, y)) == 0
    assert slant(bar(table, x, y, facet="panel")) == 30


def test_bars_side_by_side_differ_without_colour() -> None:
    drawn = bar(TABLE, Axis("seed", "seed"), Axis("ttft_s", "TTFT (s)"), by="system")
    assert _heights(drawn) == [[1.0, 2.0, 9.0], [4.0, 4.0, 4.0]]
    first, second = (bars.patches[0] for bars in drawn.axes[0].containers)
    assert first.get_hatch() != second.get_hatch()
    assert first.get_x() + first.get_width() == pytest.approx(second.get_x())


def test_parts_add_up_and_a_missing_one_is_nothing() -> None:
    parts = [Axis("energy_gpu_j", "gpu (J)"), Axis("energy_network_j", "network (J)")]
    drawn = stack(TABLE, Axis("system", "system"), parts)
    assert _heights(drawn) == [[3.0, 1.0], [1.0, 0.0]]
    tops = [one.get_y() + one.get_height() for one in drawn.axes[0].containers[1]]
    assert tops == [4.0, 1.0]
    assert drawn.axes[0].get_ylabel() == "sum of the parts (J)"
    with pytest.raises(InputError, match="energy_cpu_j"):
        stack(TABLE, Axis("system", "system"), [*parts, Axis("energy_cpu_j", "cpu")])


def test_a_study_draws_them(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plots = [
        PlotSpec(kind="bar", x="system", y="ttft_s"),
        PlotSpec(kind="stack", x="system", parts=("energy_gpu_j", "energy_network_j")),
    ]
    drawn = draw_plots(TABLE, plots, tmp_path, ["system"])
    assert drawn.not_drawn == {}
    assert sorted(path.name for path in drawn.files if path.suffix == ".png") == [
        "bar-system-ttft_s.png",
        "stack-system.png",
    ]
    assert drawn.behind["stack-system"] == "each bar: 3 points, 3 seeds"


@pytest.mark.parametrize(
    "keys", [{"kind": "stack", "x": "system"}, {"kind": "bar", "x": "a", "y": "b", "parts": ("c", "d")}]
)
def test_keys_of_another_kind_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="parts"):
        PlotSpec(**keys)  # type: ignore[arg-type]
