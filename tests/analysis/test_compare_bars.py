"""Bars of systems with a cloud: whose energy it is, and the gap that equal first tokens hide."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvferry.analysis.compare_bars import compare_bars
from kvferry.analysis.study_plots import axis_of, draw_plots
from kvferry.analysis.study_spec import PlotSpec

# The devices' own turns the order of both together round.
METRICS = {
    "helped": {
        "ttft_s": 0.8, "largest_gap_s": 0.1, "assisted_share": 1.0,
        "energy_j": 50.0, "energy_npu_j": 50.0, "cloud_energy_j": 2500.0, "total_energy_j": 2550.0,
    },
    "cloud": {
        "ttft_s": 0.8, "largest_gap_s": 2.5, "assisted_share": 1.0,
        "energy_j": 15.0, "energy_npu_j": 15.0, "cloud_energy_j": 3985.0, "total_energy_j": 4000.0,
    },
}  # fmt: skip


def by_title(figure: Figure) -> dict[str, Any]:
    return {axis.get_title(): axis for axis in figure.axes if axis.axison}


def written(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_energy_of_devices_with_a_cloud_says_whose_it_is_and_shows_the_sum() -> None:
    panels = by_title(compare_bars(METRICS))
    assert "Energy per request" not in panels, "that of devices alone would pass for the whole"
    both = panels["Energy per request, of devices and cloud"]
    assert written(both) == ["2.55 kJ", "4.00 kJ"]
    # devices, then the cloud behind them
    assert [bar.get_width() for bar in both.patches] == [50.0, 15.0, 2500.0, 3985.0]
    assert [bar.get_x() for bar in both.patches] == [0, 0, 50.0, 15.0]
    assert [text.get_text() for text in both.get_legend().get_texts()] == ["devices", "cloud"]
    assert len({bar.get_hatch() for bar in both.patches}) == 2, "in print without colour they would look alike"
    assert written(panels["Energy per request, of devices alone"]) == ["50.0 J", "15.0 J"]
    assert {axis.get_xlabel() for title, axis in panels.items() if "Energy" in title} == {"J"}


def test_a_gap_that_equal_first_tokens_hide_has_a_panel() -> None:
    panels = by_title(compare_bars(METRICS))
    assert written(panels["Time to first token"]) == ["800 ms", "800 ms"]
    gaps = panels["Largest gap between tokens"]
    assert written(gaps) == ["100 ms", "2.50 s"]
    assert gaps.get_xlabel() == "s"


def test_where_the_clouds_energy_is_not_known_the_devices_is_still_called_theirs() -> None:
    metrics = {
        name: {key: value for key, value in one.items() if key not in ("cloud_energy_j", "total_energy_j")}
        for name, one in METRICS.items()
    }
    panels = by_title(compare_bars(metrics))
    assert list(panels) == ["Time to first token", "Largest gap between tokens", "Energy per request, of devices alone"]


def test_a_device_without_a_cloud_has_one_row_of_panels() -> None:
    panels = by_title(compare_bars({"a": {"ttft_s": 1.0, "energy_j": 2.0, "energy_gpu_j": 2.0, "largest_gap_s": 0.1}}))
    assert list(panels) == ["Time to first token", "Energy per request"]


def test_pictures_of_a_study_say_whose_energy_they_show(tmp_path: Path) -> None:
    rows = [
        {"outcome": "done", "system": name, "link.rate": rate, "seed": 0, "energy_base_j": 1.0, **figures}
        for name, figures in METRICS.items()
        for rate in (1e6, 2e6)
    ]
    plots = [
        PlotSpec(kind="stack", x="system", parts=("energy_npu_j", "energy_base_j"), pool=("link.rate",)),
        *(PlotSpec(kind="bar", x="link.rate", y=y, by="system") for y in ("energy_j", "total_energy_j")),
    ]
    behind = draw_plots(pd.DataFrame(rows), plots, tmp_path, ("system", "link.rate")).behind
    alone = "; energy of devices alone: total_energy_j has the cloud's, too"
    assert [alone in text for text in behind.values()] == [True, True, False]
    part = axis_of("energy_npu_j", "energy_npu_j", log=False, of_devices=True)
    assert part.label == "devices' energy/request: npu (J)"
    assert axis_of("energy_npu_j", "energy_npu_j", log=False).label == "energy npu (J)"
