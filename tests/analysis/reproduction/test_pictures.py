"""What the pictures of claims show."""

from typing import Any

import pytest
from tiny import LOADING

from kvferry.analysis.reproduction.paper import Key, PanelSpec
from kvferry.analysis.reproduction.pictures import _draw_panel, claims_picture
from kvferry.analysis.reproduction.rate_errors import rates_picture
from kvferry.analysis.reproduction.results import Results
from kvferry.analysis.style import new_figure
from kvferry.scenarios.loader import load_scenario


def claim(name: str, printed: float, ours: float) -> dict[str, Any]:
    ends = {"paper_low": printed, "paper_high": printed, "ours": ours, "ours_range": None}
    return {"id": name, "statistic": "value", "verdict": "miss", "fitted": False, **ends}


def test_what_is_far_off_is_an_arrow_at_the_edge() -> None:
    axis = claims_picture([claim("near", 2.0, 4.0), claim("low", 1e9, 1.0), claim("high", 1.0, 50.0)]).axes[0]
    points = [line for line in axis.lines if len(line.get_xdata()) == 1]
    marks = {line.get_marker(): float(line.get_xdata()[0]) for line in points}
    assert (marks["X"], marks["<"], marks[">"]) == (2.0, 1 / 32, 32.0)
    assert [text.get_text() for text in axis.texts] == ["1e-09", "5e+01"]
    # The axis goes no further.
    left, right = axis.get_xlim()
    assert 1 / 64 < left < 1 / 32 and 32 < right < 64


@pytest.mark.parametrize(
    ("ours", "ticks"), [((0.7, 1.2), [0.7, 0.8, 0.9, 1.0, 1.1, 1.2]), ((0.25, 8.0), [0.25, 0.5, 1.0, 2.0, 4.0, 8.0])]
)
def test_the_axis_of_claims_can_be_read(ours: tuple[float, float], ticks: list[float]) -> None:
    axis = claims_picture([claim("low", 1.0, ours[0]), claim("high", 1.0, ours[1])]).axes[0]
    left, right = axis.get_xlim()
    assert [tick for tick in axis.get_xticks() if left <= tick <= right] == ticks


def panel_of(metric: str, figures: list[float]) -> Any:
    """The panel of a system's figures, a case each, over their number."""
    runs = {Key("ours", f"{n} phones", "ferry"): figure for n, figure in enumerate(figures, start=1)}
    scenario = load_scenario(LOADING)
    scenarios = {key: scenario.model_copy(update={"seed": n}) for n, key in enumerate(runs, start=1)}
    results = Results(scenarios, {key: [{"outcome": "done", metric: figure}] for key, figure in runs.items()})
    panel = PanelSpec(title="", experiment="ours", systems=("ferry",), metric=metric, label="", x="seed")
    axis = new_figure(5, 3).subplots()
    _draw_panel(axis, panel, ["ferry"], results, {})
    return axis


@pytest.mark.parametrize(
    ("metric", "figures", "scale"),
    [
        # A gain that falls below zero under load has its points there too.
        ("ttft_decrease_percent", [72.0, 0.0, -40.0], "linear"),
        ("ttft_decrease_percent", [72.0, 1.0], "linear"),
        ("reuse_rate", [0.9, 0.05], "linear"),
        ("reuse_rate", [0.92, 0.87], "linear"),
        ("ttft_s", [0.0, 30.0], "linear"),
        ("ttft_s", [2.0, 19.0], "linear"),
        ("ttft_s", [1.0, 19.0], "log"),
    ],
)
def test_only_what_spans_decades_is_on_a_logarithmic_axis(metric: str, figures: list[float], scale: str) -> None:
    axis = panel_of(metric, figures)
    assert axis.get_yscale() == scale
    low, high = axis.get_ylim()
    assert list(axis.lines[0].get_ydata()) == figures
    assert all(low <= figure < 0.97 * high for figure in figures if figure > 0)


def rate(device: str, metric: str, measured: float | None, ours: float | None, fitted: bool = False) -> dict[str, Any]:
    return {"device": device, "metric": metric, "paper": measured, "ours": ours, "fitted": fitted}


def test_rates_stand_beside_what_was_measured_and_what_was_fitted_on_is_hollow() -> None:
    tokens_per_s, first_s = "throughput_tokens_per_s", "ttft_s"
    cells = [
        rate("b", tokens_per_s, 10.0, 12.0),
        rate("b", tokens_per_s, 20.0, 19.0, fitted=True),
        rate("a", tokens_per_s, 5.0, 4.0),
        rate("a", first_s, 0.5, None),  # did not come about
        rate("c", tokens_per_s, None, 3.0),  # was not measured
    ]
    figure = rates_picture(cells)
    rates, first_tokens = figure.axes
    points = [line for line in rates.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    shown = [(list(line.get_xdata()), list(line.get_ydata()), line.get_markerfacecolor() == "none") for line in points]
    assert shown == [([5.0], [4.0], False), ([10.0], [12.0], False), ([20.0], [19.0], True)]
    # The line of what is right goes as far as the figures, and a little further.
    (right,) = (line for line in rates.lines if line.get_linestyle() == "-")
    assert list(right.get_xdata()) == pytest.approx([4.0 / 1.3, 20.0 * 1.3])
    assert not [line for line in first_tokens.lines if len(line.get_xdata())]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
