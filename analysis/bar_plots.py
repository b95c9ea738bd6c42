"""Pictures of studies in bars: one per value of a setting with its spread, or a whole that is made up of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.interval_columns import lacking_intervals
from kvferry.analysis.plots import (
    Axis,
    _dress,
    _name_series,
    _name_ticks,
    _panels,
    _rows_with,
    _ticks,
    say_above,
    short_names,
    spread_name,
    spreads,
    without_intervals,
)
from kvferry.analysis.style import SERIES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Of all bars at one place.
_WIDTH = 0.8
# So that neighbours differ in print without colour, too.
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "+++")


def bar(
    frame: pd.DataFrame,
    x: Axis,
    y: Axis,
    *,
    by: str | None = None,
    band: Literal["p5-p95", "min-max"] = "p5-p95",
    title: str = "",
    facet: str | None = None,
    note: str = "",
) -> Figure:
    """The median of y as a bar at each value of x, side by side for the values of `by`, the spread over the remaining
    columns (seeds ...) as a whisker. `facet` and `note` as in ``plots.line``.

    Raises as ``plots.line`` does.
    """
    # Without a further setting each bar is a series.
    series = x.column if by is None and any(isinstance(one, str) for one in frame[x.column]) else by
    frame = _rows_with(frame, x.column, y.column, by)
    lacking = lacking_intervals(frame, y.column, series)
    figure, panels = _panels(frame, facet, title, note, height_in=3.8)
    spread = False
    names = list(frame[by].unique()) if by is not None else [None]
    labels, places = short_names(names), _places(frame, x)
    for axis, part in panels:
        for n, name in enumerate(names):
            rows = part if by is None else part[part[by] == name]
            groups = spreads(rows, x, y, band)
            there = [at for at in places if at in groups]
            if not there:
                continue
            below, median, above = np.array([groups[at] for at in there]).T
            width = _WIDTH / len(names)
            at = np.array([places.index(one) for one in there]) + width * (n - (len(names) - 1) / 2)
            axis.bar(at, median, width, label=labels[n], **_look(n))
            if (above > below).any():
                spread = True
                axis.errorbar(
                    at, median, (median - below, above - median), linestyle="none", color=style.INK, capsize=2.5
                )
    _finish(panels, x, y, places, by, len(names))
    said = f"bar: median, whisker: {spread_name(frame, y, band)}" if spread else "bar: median"
    say_above(panels, said + without_intervals(lacking))
    return figure


def stack(
    frame: pd.DataFrame,
    x: Axis,
    parts: Sequence[Axis],
    *,
    title: str = "",
    facet: str | None = None,
    note: str = "",
) -> Figure:
    """The means of several figures of one unit on top of each other, at each value of x: what a whole is made up of.
    A part that a row lacks counts as nothing. `facet` and `note` as in ``plots.line``.

    Raises as ``plots.line`` does.
    """
    frame = _rows_with(frame, x.column)
    for part in parts:
        _rows_with(frame, part.column)
    figure, panels = _panels(frame, facet, title, note, height_in=3.8)
    places = _places(frame, x)
    for axis, rows in panels:
        means = (
            rows.fillna({part.column: 0.0 for part in parts}).groupby(x.column)[[part.column for part in parts]].mean()
        )
        there = [at for at in places if at in means.index]
        bottom = np.zeros(len(there))
        for n, part in enumerate(parts):
            heights = means.loc[there, part.column].to_numpy(float) * part.scale
            axis.bar([places.index(at) for at in there], heights, _WIDTH, bottom, label=part.label, **_look(n))
            bottom += heights
    units = {part.label.rpartition(" (")[2].rstrip(")") for part in parts if " (" in part.label}
    whole = Axis("", f"sum of the parts ({', '.join(sorted(units))})" if units else "sum of the parts")
    _finish(panels, x, whole, places, "part", len(parts))
    say_above(panels, "means")
    return figure


def _places(frame: pd.DataFrame, x: Axis) -> list[Any]:
    """The values of x: numbers in order, text as the table has it."""
    values = list(frame[x.column].unique())
    return values if any(isinstance(value, str) for value in values) else sorted(values)


def _look(n: int) -> dict[str, Any]:
    return {
        "color": SERIES[n % len(SERIES)],
        "hatch": _HATCHES[n % len(_HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.6,
    }


def _finish(panels: Any, x: Axis, y: Axis, places: list[Any], by: str | None, series: int) -> None:
    _dress(panels, Axis(x.column, x.label), y)
    for axis, _ in panels:
        axis.grid(visible=False, axis="x")
        _name_ticks(axis, range(len(places)), _ticks(places, x.scale))
        axis.set_xlim(-0.5, len(places) - 0.5)
    _name_series(panels, by, series)
