"""Pictures of studies: lines with their spread, cumulative distributions, heat maps, from a table of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.style import LINES, MARKERS, SERIES
from kvferry.specs.errors import unknown_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Up to this many cells a heat map also prints its figures.
_WRITTEN_CELLS = 150


@dataclass(frozen=True)
class Axis:
    """A column of the table, its label with a unit, and the factor that converts to that unit."""

    column: str
    label: str
    scale: float = 1.0
    log: bool = False


def line(
    frame: pd.DataFrame,
    x: Axis,
    y: Axis,
    *,
    by: str | None = None,
    band: Literal["p5-p95", "min-max"] = "p5-p95",
    title: str = "",
) -> Figure:
    """The median of y over x, a line per value of `by`, the spread over the remaining columns (seeds ...) as a band.

    Text on the x axis keeps the table's order. Raises InputError for a column that is not there, ValueError when
    no row has both values.
    """
    frame = _rows_with(frame, x.column, y.column, by)
    low, high = (5, 95) if band == "p5-p95" else (0, 100)
    figure, axis = _one_panel(title)
    words = _words(frame[x.column])
    series = list(_series(frame, by))
    for n, (name, part) in enumerate(series):
        groups = {at: values.to_numpy(float) * y.scale for at, values in part.groupby(x.column, sort=False)[y.column]}
        order = [word for word in words if word in groups] or sorted(groups)
        below, median, above = np.array([np.percentile(groups[at], (low, 50, high)) for at in order]).T
        how: dict[str, Any] = {
            "label": name, "color": SERIES[n % len(SERIES)], "marker": MARKERS[n % len(MARKERS)], "markersize": 4.5,
        }  # fmt: skip
        if words:
            # A text axis has nothing between its values: no line, and the series side by side.
            at = np.array([words.index(word) for word in order]) + 0.5 * ((n + 1) / (len(series) + 1) - 0.5)
            axis.errorbar(at, median, (median - below, above - median), linestyle="none", capsize=2.5, **how)
        else:
            at = np.array(order, float) * x.scale
            axis.fill_between(at, below, above, color=how["color"], alpha=0.18, linewidth=0)
            axis.plot(at, median, linestyle=LINES[n % len(LINES)], zorder=3, **how)
    if words:
        axis.set_xticks(range(len(words)), words)
        axis.set_xlim(-0.5, len(words) - 0.5)
    _dress(axis, x, y)
    points = sorted(frame[x.column].unique())
    if x.log and not words and len(points) <= 8:
        axis.set_xticks([point * x.scale for point in points], [_tick(point, x.scale) for point in points])
        axis.set_xticks([], minor=True)
    _name_series(axis, by)
    axis.annotate(
        f"median, band: {band}", (1, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points",
        ha="right", size=8, color=style.GREY,
    )  # fmt: skip
    return figure


def cdf(frame: pd.DataFrame, value: Axis, *, by: str | None = None, title: str = "") -> Figure:
    """The share of rows at or below each value, a step line per value of `by`; median and p95 as thin lines.

    Raises as `line` does.
    """
    frame = _rows_with(frame, value.column, by)
    figure, axis = _one_panel(title)
    for n, (name, part) in enumerate(_series(frame, by)):
        values = np.sort(part[value.column].to_numpy(float)) * value.scale
        axis.step(
            np.concatenate((values[:1], values)), 100 * np.arange(len(values) + 1) / len(values), where="post",
            label=name, color=SERIES[n % len(SERIES)], linestyle=LINES[n % len(LINES)],
        )  # fmt: skip
    for share in (50, 95):
        axis.axhline(share, color=style.GREY, linewidth=0.7, linestyle=":", zorder=0)
    axis.set_yticks([0, 25, 50, 75, 95, 100])
    _dress(axis, value, Axis("", "share of runs (%)"))
    axis.set_ylim(0, 101)
    _name_series(axis, by)
    return figure


def heat_map(frame: pd.DataFrame, x: Axis, y: Axis, value: Axis, *, title: str = "") -> Figure:
    """The median value at each (x, y); figures written into the cells unless there are too many; empty cells hatched.

    Raises as `line` does.
    """
    from matplotlib.colors import LogNorm

    frame = _rows_with(frame, x.column, y.column, value.column)
    columns = _words(frame[x.column]) or sorted(frame[x.column].unique())
    rows = _words(frame[y.column]) or sorted(frame[y.column].unique())
    cells = np.full((len(rows), len(columns)), np.nan)
    for (row, column), values in frame.groupby([y.column, x.column])[value.column]:
        cells[rows.index(row), columns.index(column)] = float(values.median()) * value.scale
    figure, axis = _one_panel(title, height_in=1.4 + min(0.42 * len(rows), 5.5), width_in=6.4)
    axis.set_facecolor(style.FAINT)
    axis.patch.set_hatch("////")
    axis.patch.set_edgecolor("white")
    mesh = axis.pcolormesh(
        cells, cmap="cividis", edgecolors="white", linewidth=0.8, norm=LogNorm() if value.log else None
    )
    figure.colorbar(mesh, ax=axis, label=value.label)
    if cells.size <= _WRITTEN_CELLS:
        for (row, column), cell in np.ndenumerate(cells):
            if np.isfinite(cell):
                dark = mesh.norm(cell) < 0.5
                axis.text(
                    column + 0.5, row + 0.5, _figure(cell), ha="center", va="center", size=8,
                    color="white" if dark else style.INK,
                )  # fmt: skip
    axis.set_xticks(np.arange(len(columns)) + 0.5, [_tick(c, x.scale) for c in columns])
    axis.set_yticks(np.arange(len(rows)) + 0.5, [_tick(r, y.scale) for r in rows])
    if _words(frame[y.column]):
        axis.invert_yaxis()  # text is listed from the top, numbers grow upwards
    axis.set_xlabel(x.label)
    axis.set_ylabel(y.label)
    axis.tick_params(length=0)
    return figure


# By the name that a study's YAML uses.
PLOTS: dict[str, Callable[..., Any]] = {"line": line, "cdf": cdf, "heat_map": heat_map}


def _rows_with(frame: pd.DataFrame, *columns: str | None) -> pd.DataFrame:
    wanted = [column for column in columns if column is not None]
    for column in wanted:
        if column not in frame.columns:
            raise unknown_name("column", column, map(str, frame.columns))
    kept = frame.dropna(subset=wanted)
    if kept.empty:
        raise ValueError(f"nothing to draw: no row has {' and '.join(wanted)}")
    return kept


def _series(frame: pd.DataFrame, by: str | None) -> Iterator[tuple[str | None, pd.DataFrame]]:
    """The parts of a table by a column, in the order in which they first occur."""
    if by is None:
        yield None, frame
        return
    for name in frame[by].unique():
        yield str(name), frame[frame[by] == name]


def _words(column: pd.Series) -> list[Any]:
    """The distinct values of a column of text, in its order; empty for numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    numbers = is_numeric_dtype(column) and not is_bool_dtype(column)
    return [] if numbers else list(column.unique())


def _one_panel(title: str, width_in: float = 6.4, height_in: float = 3.8) -> tuple[Figure, Any]:
    figure = style.new_figure(width_in, height_in)
    axis = figure.subplots()
    axis.set_title(title)
    return figure, axis


def _dress(axis: Any, x: Axis, y: Axis) -> None:
    axis.set_xlabel(x.label)
    axis.set_ylabel(y.label)
    axis.grid()
    if x.log:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
    if y.log:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    else:
        # Lengths start at zero; a curve that goes below shows where zero is.
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]) if axis.dataLim.y0 < 0 else 0.0)


def _name_series(axis: Any, by: str | None) -> None:
    if by is not None:
        axis.legend(title=by, loc="center left", bbox_to_anchor=(1.0, 0.5), alignment="left", handlelength=2.6)


def _figure(cell: float) -> str:
    return f"{cell:,.0f}" if abs(cell) >= 999.5 else f"{cell:.3g}"


def _tick(value: Any, scale: float) -> str:
    return f"{value * scale:g}" if isinstance(value, int | float | np.number) else str(value)
