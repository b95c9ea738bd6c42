"""The Pareto front by hand, and what holds for every one."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from kvferry.analysis.figures import less_is_better
from kvferry.analysis.pareto import front_of, pareto, pareto_picture, progress_picture
from kvferry.analysis.plots import Axis
from kvferry.analysis.study import load_study
from kvferry.analysis.study_plots import draw_plots
from kvferry.analysis.study_spec import PlotSpec
from kvferry.analysis.style import render
from kvferry.specs.errors import InputError


def test_a_front_by_hand() -> None:
    # Seconds (less is better) against tokens/s (more is better).
    values = np.array([[1.0, 10.0], [2.0, 20.0], [2.0, 15.0], [3.0, 20.0], [1.0, 10.0], [0.5, 5.0]])
    # The third is beaten by the second, and so is the fourth; equal ones do not beat each other.
    assert front_of(values, [True, False]).tolist() == [True, True, False, False, True, True]
    assert front_of(values[:, :1], [True]).tolist() == [False] * 5 + [True]
    assert front_of(np.empty((0, 2)), [True, True]).tolist() == []


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=20))
def test_what_is_not_on_the_front_is_beaten_by_what_is(points: list[tuple[int, int, int]]) -> None:
    values = np.array(points, float)
    lower = [True, False, True]
    costs = np.where(lower, values, -values)
    front = front_of(values, lower)
    for cost, on_front in zip(costs, front, strict=True):
        beaten = (np.all(costs[front] <= cost, axis=1) & np.any(costs[front] < cost, axis=1)).any()
        assert beaten != on_front


def test_pictures_name_axes_units_and_which_way_is_better() -> None:
    values = np.array([[1.0, 10.0], [2.0, 20.0], [2.0, 15.0]])
    front = front_of(values, [True, False])
    axes = [Axis("ttft_s", "TTFT, mean (s)"), Axis("memory_peak_bytes", "memory peak (MB)", 1e-6)]
    figure = pareto_picture(values, np.array([[3.0, 1.0]]), front, axes, [True, False], names=["0", "1"], title="t")
    (panel,) = figure.axes
    assert panel.get_xlabel() == "TTFT, mean (s), less is better"
    assert panel.get_ylabel() == "memory peak (MB), more is better"
    assert [text.get_text() for text in panel.texts] == ["0", "1"]
    # Told apart without colour: filled and hollow circles, crosses, and a staircase.
    assert [line.get_marker() for line in panel.lines] == ["o", "o", "x", "None"]
    assert [line.get_markerfacecolor() == "white" for line in panel.lines[:2]] == [False, True]
    assert set(render(lambda: figure)) == {"png", "svg"}
    with pytest.raises(ValueError, match="no point keeps every constraint"):
        pareto_picture(values[:0], values, front[:0], axes, [True, False])


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_nothing_lies_on_anything_else(objectives: int) -> None:
    values = np.random.default_rng(3).random((30, objectives))
    axes = [Axis("ttft_s", f"objective {n} of a search (s)") for n in range(objectives)]
    lower = [True] * objectives
    front = front_of(values, lower)
    names = [str(n) for n in range(int(front.sum()))]
    note = "30 of 64 points keep every constraint; medians over 3 seeds"
    figure = pareto_picture(values, values[:3], front, axes, lower, names=names, title="a search (a device)", note=note)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    (legend,) = figure.legends
    panels = [panel.get_tightbbox(renderer) for panel in figure.axes]
    title = next(text for text in figure.texts if text.get_text() == "a search (a device)").get_window_extent(renderer)
    boxes = [legend.get_window_extent(renderer), title, *panels]
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1


def test_progress_of_a_single_objective() -> None:
    figure = progress_picture([(0, 3.0), (2, 1.0)], [(0, 3.0), (2, 1.0), (5, 2.0)], Axis("ttft_s", "TTFT, mean (s)"))
    hollow, best = figure.axes[0].lines
    assert hollow.get_ydata().tolist() == [3.0, 1.0, 2.0]
    assert list(zip(*best.get_data(), strict=True)) == [(0.0, 3.0), (2.0, 1.0), (5.0, 1.0)]


STUDY = pd.DataFrame(
    {
        "outcome": ["done"] * 8,
        "key": list("abcdefgh"),
        "system": ["x"] * 4 + ["y"] * 4,
        "workload.context": [1, 1, 2, 2] * 2,
        "seed": [0, 1] * 4,
        # Medians: x 1 s 8 J and 2 s 6 J; y 3 s 7 J (beaten by 2 s 6 J) and 4 s 1 J.
        "ttft_s": [0.5, 1.5, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0],
        "energy_j": [8.0, 8.0, 5.0, 7.0, 7.0, 7.0, 1.0, 1.0],
    }
)


def test_a_studys_front_is_of_medians_over_seeds(tmp_path: Path) -> None:
    axes = ["system", "workload.context"]
    figure = pareto(
        STUDY, Axis("ttft_s", "TTFT (s)"), Axis("energy_j", "energy (J)"), lower=(True, True), same=axes, by="system"
    )
    (panel,) = figure.axes
    marks = [line for line in panel.lines if line.get_marker() not in ("None", None, "") and len(line.get_xdata())]
    filled = [line.get_xydata().tolist() for line in marks if line.get_markerfacecolor() != "white"]
    hollow = [line.get_xydata().tolist() for line in marks if line.get_markerfacecolor() == "white"]
    assert filled == [[[1.0, 8.0], [2.0, 6.0]], [[4.0, 1.0]]]
    assert hollow == [[[3.0, 7.0]]]
    assert panel.get_xlabel() == "TTFT (s), less is better"
    drawn = draw_plots(STUDY, [PlotSpec(kind="pareto", x="ttft_s", y="energy_j", by="system")], tmp_path, axes)
    assert drawn.not_drawn == {}
    assert drawn.behind == {"pareto-ttft_s-energy_j-system": "each mark: 2 points, 2 seeds"}
    assert {path.suffix for path in drawn.files} == {".png", ".svg"}


def test_more_can_be_better() -> None:
    assert [less_is_better(name) for name in ("ttft_s", "throughput_tokens_per_s", "energy_gpu_j", "link.rate")] == [
        True,
        False,
        True,
        None,
    ]


def test_a_front_needs_to_know_what_is_better(here: Path) -> None:
    study = "base: quickstart\naxes: {workload.context: [1Ki, 2Ki]}\nplots:\n  - {kind: pareto, x: ttft_s, y: KEY}\n"
    Path("study.yaml").write_text(study.replace("KEY", "energy_j"))
    assert [plot.kind for plot in load_study("study.yaml").plots] == ["pareto"]
    Path("study.yaml").write_text(study.replace("KEY", "workload.context"))
    with pytest.raises(InputError, match="study.yaml:4: plots.0.y: 'workload.context' is no metric of which"):
        load_study("study.yaml")
