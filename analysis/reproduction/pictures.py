"""A paper's experiments as pictures: a figure by system and case, hollow as the paper prints it, and every claim."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.reproduction.paper import Key, PanelSpec, Paper, PictureSpec
from kvferry.analysis.reproduction.rate_errors import rates_picture
from kvferry.analysis.reproduction.results import Results
from kvferry.analysis.reproduction.sustained import sustained_picture
from kvferry.analysis.reproduction.verdict import TOLERANCE, over_paper, ranges_over_paper
from kvferry.analysis.settings import settings_of
from kvferry.analysis.style import LINES, MARKERS, SERIES
from kvferry.specs import human

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour and shape say the same, as prints may have no colour.
_COLOURS = {"hit": style.GREEN, "miss": style.VERMILION, "measured": style.GREY}
_FITTED: dict[str, Any] = {"marker": "s", "color": style.INK, "markerfacecolor": "none", "markersize": 10}
_HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 8, "markeredgewidth": 1.2}
_PAPERS = "hollow: as the paper prints it"
_OURS = "filled: simulated, on profiles that were not measured; line: from the least to the most over seeds"
# From here on axes have prefixes, as 100 M.
_LARGE = 1e5
# By run and metric.
Printed = dict[tuple[Key, str], float]
# What is further from the paper's figure, either way, is an arrow at the edge with its number beside it.
_FURTHEST = 32.0
# An axis of claims that spans less has these ticks.
_CLOSE = 4.0
_CLOSE_TICKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0)
_DECADE = 10.0
_SHAPES = {"hit": "o", "miss": "X", "measured": "D"}


def pictures_of(paper: Paper, report: dict[str, Any], results: Results) -> dict[str, dict[str, bytes]]:
    """By name: the pictures that the paper's data ask for, "claims" where it makes any, "rates" and "sustained" where
    it has rates that people measured; each as {"png", "svg"}."""
    pictures = {spec.name: style.render(partial(_draw, spec, results, _printed(paper))) for spec in paper.pictures}
    if "by_device" in report:
        pictures["rates"] = style.render(partial(rates_picture, report["cells"]))
        pictures["sustained"] = style.render(partial(sustained_picture, report["sustained"]))
    return pictures | ({"claims": style.render(partial(claims_picture, report["claims"]))} if report["claims"] else {})


def _printed(paper: Paper) -> Printed:
    """The paper's own values in the units of our figures, by run and metric."""
    return {
        (Key(cell.experiment, cell.case, cell.system), cell.metric): cell.value / cell.scale
        for cell in paper.cells
        if cell.value is not None and not cell.out_of_memory
    }


def _draw(spec: PictureSpec, results: Results, printed: Printed) -> Figure:
    columns = min(len(spec.panels), spec.columns)
    rows = -(-len(spec.panels) // columns)
    figure = style.new_figure(10, 0.5 + 2.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    # One colour and marker per system throughout the picture.
    systems = list(dict.fromkeys(system for panel in spec.panels for system in panel.systems))
    for axis, panel in zip(axes, spec.panels):
        _draw_panel(axis, panel, systems, results, printed)
    for axis in axes[len(spec.panels) :]:
        axis.set_axis_off()
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}
    if _PAPERS in handles:
        # Of all systems, so it stands last.
        handles[_PAPERS] = handles.pop(_PAPERS)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 6), title=_OURS,
        title_fontsize=8,
    )  # fmt: skip
    return figure


def _draw_panel(axis: Axes, panel: PanelSpec, systems: list[str], results: Results, printed: Printed) -> None:
    every = dict.fromkeys(key.case for key in results.rows if key.experiment == panel.experiment)
    cases = [case for case in every if not panel.cases or case in panel.cases]
    drawn: list[float] = []
    for place, system in enumerate(panel.systems):
        n = systems.index(system)
        runs = [Key(panel.experiment, case, system) for case in cases]
        figures = [results.figure(run, panel.metric) for run in runs]
        heights = [np.nan if figure is None else figure for figure in figures]
        how: dict[str, Any] = {"label": system, "color": SERIES[n], "marker": MARKERS[n], "markersize": 5}
        if panel.x is None:
            # Cases have nothing between them: no line, and the systems side by side.
            beside = 0.6 * ((place + 0.5) / len(panel.systems) - 0.5)
            places = list(np.arange(len(cases)) + beside)
            axis.plot(places, heights, linestyle="none", **how)
        else:
            places = _places(panel, cases, results)
            axis.plot(places, heights, linestyle=LINES[n], **how)
        for place, run in zip(places, runs):
            known = [figure for figure in results.of_seeds(run, panel.metric) if figure is not None]
            drawn += known
            if len(known) > 1:
                axis.vlines(place, min(known), max(known), color=SERIES[n], linewidth=1)
        theirs = [(at, printed[run, panel.metric]) for at, run in zip(places, runs) if (run, panel.metric) in printed]
        drawn += [figure for _, figure in theirs]
        if theirs:
            axis.plot(*zip(*theirs), color=SERIES[n], marker=MARKERS[n], **_HOLLOW)
            axis.plot([], [], color=style.INK, marker="o", **_HOLLOW, label=_PAPERS)
    ticks = np.arange(len(cases)) if panel.x is None else _places(panel, cases, results)
    of_what = {case.partition(" ")[2] for case in cases}
    if panel.x is not None and len(of_what) == 1:
        # Numbers of the same things stand close at times: the things are named once.
        axis.set_xticks(ticks, [case.partition(" ")[0] for case in cases])
        axis.set_xlabel(of_what.pop())
    else:
        axis.set_xticks(ticks, [case.replace(" ", "\n", 1) for case in cases])
    if panel.x is None:
        axis.set_xlim(-0.5, len(cases) - 0.5)
        axis.tick_params(axis="x", length=0)
    _scale(axis, panel, drawn)
    axis.set_title(panel.title)
    axis.set_ylabel(panel.label)
    axis.grid(axis="y")


def _scale(axis: Axes, panel: PanelSpec, drawn: list[float]) -> None:
    """A logarithmic axis for what spans decades. What may be zero or less would have no point there, and percentages
    are read as lengths: a linear axis that shows where zero is."""
    from matplotlib.ticker import EngFormatter, LogLocator

    percentage = panel.metric.endswith("_percent") or human.of_unit(panel.metric) is human.percent
    if not percentage and drawn and min(drawn) > 0 and max(drawn) > _DECADE * min(drawn):
        axis.set_yscale("log", subs=())
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    elif not drawn or min(drawn) >= 0:
        # Room for a whole mark at the top.
        axis.set_ylim(0, 1.05 * max(drawn, default=1.0) or 1.0)
    else:
        axis.axhline(0, color=style.GREY, linewidth=0.8, zorder=0)
    axis.yaxis.set_major_formatter(EngFormatter() if drawn and max(drawn) >= _LARGE else "{x:g}")


def _places(panel: PanelSpec, cases: list[str], results: Results) -> list[Any]:
    return [
        settings_of(results.scenarios[Key(panel.experiment, case, panel.systems[0])])[str(panel.x)] for case in cases
    ]


def claims_picture(claims: list[dict[str, Any]]) -> Figure:
    """Ours over the paper's, claim by claim, on a logarithmic axis; the band is what counts as a hit."""
    from matplotlib.ticker import FixedLocator, LogLocator

    figure = style.new_figure(10, 1.2 + 0.24 * len(claims))
    axis = figure.subplots()
    axis.axvspan(1 - TOLERANCE, 1 + TOLERANCE, color=style.FAINT, zorder=0)
    axis.axvline(1, color=style.GREY, linewidth=0.8)
    for row, claim in enumerate(claims):
        ends = over_paper(claim)
        shown = [min(max(end, 1 / _FURTHEST), _FURTHEST) for end in ends]
        colour, shape = _COLOURS.get(claim["verdict"], style.GREY), _SHAPES.get(claim["verdict"], "D")
        for least, most in ranges_over_paper(claim):
            if least >= 1 / _FURTHEST and most <= _FURTHEST:
                axis.plot([least, most], [row, row], color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
        axis.plot(shown, [row] * len(ends), color=colour)
        for end, at in zip(ends, shown):
            mark = shape if end == at else "<" if end < at else ">"
            axis.plot(at, row, color=colour, marker=mark, markersize=6)
            if end != at:
                axis.annotate(f"{end:.1g}", (at, row), (0, 5), textcoords="offset points", ha="center", size=8)
        if claim["fitted"]:
            axis.plot(shown, [row] * len(ends), linestyle="none", **_FITTED)
    axis.set_yticks(range(len(claims)), [claim["id"] for claim in claims])
    axis.invert_yaxis()
    axis.set_xscale("log", subs=())
    least, most = axis.get_xlim()
    # Powers of two would be one or two where all claims lie close to the paper.
    close = most < _CLOSE * least
    axis.xaxis.set_major_locator(FixedLocator(_CLOSE_TICKS) if close else LogLocator(base=2, numticks=16))
    axis.xaxis.set_major_formatter("{x:.2g}")
    axis.minorticks_off()
    axis.set_xlabel(
        "ours / paper, medians over seeds; 1: inside the printed interval;\n"
        "bars: least to most; a sweep's two ends are "
        "joined; arrows: off the axis; grey: within 15 %"
    )
    axis.grid(axis="x")
    for verdict, colour in _COLOURS.items():
        axis.plot([], [], _SHAPES[verdict], color=colour, label=verdict)
    axis.plot([], [], linestyle="none", **_FITTED, label="fitted on this claim")
    figure.legend(loc="outside lower center", ncols=4)
    return figure
