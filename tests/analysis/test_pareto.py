"""The Pareto front by hand, and what holds for every one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.pareto import front_of, pareto_picture, progress_picture
from kvferry.analysis.plots import Axis
from kvferry.analysis.style import render


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


def test_progress_of_a_single_objective() -> None:
    figure = progress_picture([(0, 3.0), (2, 1.0)], [(0, 3.0), (2, 1.0), (5, 2.0)], Axis("ttft_s", "TTFT, mean (s)"))
    hollow, best = figure.axes[0].lines
    assert hollow.get_ydata().tolist() == [3.0, 1.0, 2.0]
    assert list(zip(*best.get_data(), strict=True)) == [(0.0, 3.0), (2.0, 1.0), (5.0, 1.0)]
