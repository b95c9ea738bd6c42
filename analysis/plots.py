"""Pictures of studies: lines with their spread, cumulative distributions, heat maps, from a table of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.interval_columns import LEAST, ends_of, lacking_intervals
from kvferry.analysis.style import LINES, MARKERS, SERIES
from kvferry.specs.errors import unknown_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Up to this many cells a heat map also prints its figures.
_WRITTEN_CELLS = 150
# Panels side by side, and letters of names that fit below a panel side by side, where it is alone and where it is not.
_ACROSS = 3
_LEVEL_LETTERS = 56
# Of a title above a panel that is alone.
_TITLE_LETTERS = 64
_LEVEL_LETTERS_OF_PANELS = 36


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
    facet: str | None = None,
    note: str = "",
) -> Figure:
    """The median of y over x, a line per value of `by`, the spread over the remaining columns (seeds ...) as a band; a
    panel per value of `facet`. `note` stands below: what is behind each mark.

    Text on the x axis keeps the table's order. Raises InputError for a column that is not there, ValueError when
    no row has both values.
    """
    frame = _rows_with(frame, x.column, y.column, by)
    lacking = lacking_intervals(frame, y.column, by)
    figure, panels = _panels(frame, facet, title, note, height_in=3.8)
    names = list(frame[by].unique()) if by is not None else [None]
    words = _words(frame[x.column])
    spread = [_draw_lines(axis, part, x, y, by, band, names, words) for axis, part in panels]
    said = f"median, band: {spread_name(frame, y, band)}" if any(spread) else "median"
    say_above(panels, said + without_intervals(lacking))
    _dress(panels, x, y)
    points = [] if words else sorted(frame[x.column].unique())
    if x.log and 0 < len(points) <= 8:
        for axis, _ in panels:
            axis.set_xticks([point * x.scale for point in points], _ticks(points, x.scale))
            axis.set_xticks([], minor=True)
    _name_series(panels, by, len(names))
    return figure


def _draw_lines(
    axis: Any, frame: pd.DataFrame, x: Axis, y: Axis, by: str | None, band: str, names: list[Any], words: list[Any]
) -> bool:
    """Whether any mark has a spread."""
    spread = False
    labels = short_names(names)
    for n, name in enumerate(names):
        part = frame if by is None else frame[frame[by] == name]
        groups = spreads(part, x, y, band)
        order = [word for word in words if word in groups] or sorted(groups)
        if not order:
            continue
        below, median, above = np.array([groups[at] for at in order]).T
        spread = spread or bool((above > below).any())
        how: dict[str, Any] = {
            "label": labels[n], "color": SERIES[n % len(SERIES)], "marker": MARKERS[n % len(MARKERS)],
            "markersize": 4.5,
        }  # fmt: skip
        if words:
            # A text axis has nothing between its values: no line, and the series side by side.
            at = np.array([words.index(word) for word in order]) + 0.5 * ((n + 1) / (len(names) + 1) - 0.5)
            axis.errorbar(at, median, (median - below, above - median), linestyle="none", capsize=2.5, **how)
        else:
            at = np.array(order, float) * x.scale
            axis.fill_between(at, below, above, color=how["color"], alpha=0.18, linewidth=0)
            axis.plot(at, median, linestyle=LINES[n % len(LINES)], zorder=3, **how)
    if words:
        _name_ticks(axis, range(len(words)), short_names(words))
        axis.set_xlim(-0.5, len(words) - 0.5)
    return spread


def spreads(frame: pd.DataFrame, x: Axis, y: Axis, band: str) -> dict[Any, tuple[float, ...]]:
    """By value of x: the lower end of y's spread, its median and the upper end. Points that have an interval
    reach from one end of it to the other."""
    low, high = (5, 95) if band == "p5-p95" else (0, 100)
    found = dict[Any, tuple[float, ...]]()
    for at, rows in frame.groupby(x.column, sort=False):
        least, most = ends_of(rows, y.column)
        parts = ((least, low), (rows[y.column], 50), (most, high))
        found[at] = tuple(y.scale * float(np.percentile(of.to_numpy(float), q)) for of, q in parts)
    return found


def spread_name(frame: pd.DataFrame, y: Axis, band: str) -> str:
    """Names what a band or whisker shows."""
    ranged = f"{LEAST}{y.column}" in frame and frame[f"{LEAST}{y.column}"].notna().any()
    return f"{band} of 80 % intervals" if ranged else band


def without_intervals(lacking: Sequence[str]) -> str:
    """Says which series have no intervals beside others that have them."""
    return f"; without one, though not exact: {', '.join(short_names(lacking))}" if lacking else ""


def say_above(panels: Panels, what: str) -> None:
    """What marks are, above the first panel on the right, or above all where it has a title."""
    axis = panels[0][0]
    axis.annotate(
        what, (1, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points", ha="right", size=8,
        color=style.GREY,
    )  # fmt: skip


def cdf(
    frame: pd.DataFrame,
    value: Axis,
    *,
    by: str | None = None,
    title: str = "",
    facet: str | None = None,
    note: str = "",
) -> Figure:
    """The share of rows at or below each value, a step line per value of `by`; median and p95 as thin lines. `facet`
    and `note` as in `line`.

    Raises as `line` does.
    """
    frame = _rows_with(frame, value.column, by)
    figure, panels = _panels(frame, facet, title, note, height_in=3.8)
    names = list(frame[by].unique()) if by is not None else [None]
    for axis, part in panels:
        _draw_shares(axis, part, value, by, names)
    _dress(panels, value, Axis("", "share of runs (%)"))
    panels[0][0].set_ylim(0, 101)
    _name_series(panels, by, len(names))
    return figure


def _draw_shares(axis: Any, frame: pd.DataFrame, value: Axis, by: str | None, names: list[Any]) -> None:
    labels = short_names(names)
    for n, name in enumerate(names):
        part = frame if by is None else frame[frame[by] == name]
        if part.empty:
            continue
        values = np.sort(part[value.column].to_numpy(float)) * value.scale
        axis.step(
            np.concatenate((values[:1], values)), 100 * np.arange(len(values) + 1) / len(values), where="post",
            label=labels[n], color=SERIES[n % len(SERIES)], linestyle=LINES[n % len(LINES)],
        )  # fmt: skip
    for share in (50, 95):
        axis.axhline(share, color=style.GREY, linewidth=0.7, linestyle=":", zorder=0)
    axis.set_yticks([0, 25, 50, 75, 95, 100])


def heat_map(
    frame: pd.DataFrame, x: Axis, y: Axis, value: Axis, *, title: str = "", facet: str | None = None, note: str = ""
) -> Figure:
    """The median value at each (x, y); figures written into the cells unless there are too many; empty cells hatched.
    `facet` and `note` as in `line`; panels share their colours.

    Raises as `line` does.
    """
    from matplotlib.colors import LogNorm, Normalize

    frame = _rows_with(frame, x.column, y.column, value.column)
    columns = _words(frame[x.column]) or sorted(frame[x.column].unique())
    rows = _words(frame[y.column]) or sorted(frame[y.column].unique())
    figure, panels = _panels(frame, facet, title, note, height_in=1.4 + min(0.42 * len(rows), 5.5))
    tables = [_medians(part, x, y, value, rows, columns) for _, part in panels]
    every = np.concatenate([cells[np.isfinite(cells)] for cells in tables])
    norm = (LogNorm if value.log else Normalize)(every.min(), every.max())
    for (axis, _), cells in zip(panels, tables, strict=True):
        mesh = _draw_cells(axis, cells, norm)
        _name_ticks(axis, np.arange(len(columns)) + 0.5, _ticks(columns, x.scale))
        axis.set_yticks(np.arange(len(rows)) + 0.5, _ticks(rows, y.scale))
        if _words(frame[y.column]) and not axis.yaxis_inverted():
            axis.invert_yaxis()  # text is listed from the top, numbers grow upwards
        axis.tick_params(length=0)
    _label(panels, x, y)
    figure.colorbar(mesh, ax=[axis for axis, _ in panels], label=value.label)
    return figure


def _medians(
    frame: pd.DataFrame, x: Axis, y: Axis, value: Axis, rows: Sequence[Any], columns: Sequence[Any]
) -> np.ndarray:
    cells = np.full((len(rows), len(columns)), np.nan)
    for (row, column), values in frame.groupby([y.column, x.column])[value.column]:
        cells[rows.index(row), columns.index(column)] = float(values.median()) * value.scale
    return cells


def _draw_cells(axis: Any, cells: np.ndarray, norm: Any) -> Any:
    axis.set_facecolor(style.FAINT)
    axis.patch.set_hatch("////")
    axis.patch.set_edgecolor("white")
    mesh = axis.pcolormesh(cells, cmap="cividis", edgecolors="white", linewidth=0.8, norm=norm)
    if cells.size <= _WRITTEN_CELLS:
        for (row, column), cell in np.ndenumerate(cells):
            if np.isfinite(cell):
                axis.text(
                    column + 0.5, row + 0.5, _figure(cell), ha="center", va="center", size=8,
                    color="white" if norm(cell) < 0.5 else style.INK,
                )  # fmt: skip
    return mesh


# Axes of a figure with the rows that each shows.
Panels = Sequence[tuple[Any, "pd.DataFrame"]]
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


def _words(column: pd.Series) -> list[Any]:
    """The distinct values of a column of text, in its order; empty for numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    numbers = is_numeric_dtype(column) and not is_bool_dtype(column)
    return [] if numbers else list(column.unique())


def _panels(
    frame: pd.DataFrame, facet: str | None, title: str, note: str, *, height_in: float
) -> tuple[Figure, list[tuple[Any, pd.DataFrame]]]:
    """A figure with a panel per value of a column, and the rows of each."""
    values = [None] if facet is None else list(frame[facet].unique())
    across = min(len(values), _ACROSS)
    down = -(-len(values) // across)
    width_in = 6.4 if across == 1 else 1.2 + 4.2 * across
    figure = style.new_figure(width_in, (height_in + 0.2) * down)
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for axis in axes[len(values) :]:
        axis.remove()
    if facet is None:
        # Room for a line below it, which says what marks are.
        axes[0].set_title("\n".join(wrap(title, _TITLE_LETTERS)), pad=17)
    else:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
        for axis, value in zip(axes, values, strict=False):
            axis.set_title(str(value), weight="normal", size=9)
            axis.tick_params(labelbottom=True)
    if note:
        figure.supxlabel(note, x=0.99, ha="right", size=7.5, color=style.GREY)
    return figure, [
        (axis, frame if facet is None else frame[frame[facet] == value])
        for axis, value in zip(axes, values, strict=False)
    ]


def _label(panels: Panels, x: Axis, y: Axis) -> None:
    for axis, _ in panels:
        axis.set_xlabel(x.label)
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(y.label)


def _dress(panels: Panels, x: Axis, y: Axis) -> None:
    """Labels, grid and scales, once all panels are drawn: they share their axes."""
    _label(panels, x, y)
    for axis, _ in panels:
        axis.grid()
        if x.log:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
        if y.log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
    if not y.log:
        # Lengths start at zero; a curve that goes below shows where zero is.
        axis = panels[0][0]
        lowest = min(axis.dataLim.y0 for axis, _ in panels)
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]) if lowest < 0 else 0.0)


def _name_series(panels: Panels, by: str | None, lines: int) -> None:
    """A legend of what any of the panels shows, beside the last one."""
    if by is None or not lines:
        return
    found: dict[str, Any] = {}
    for axis, _ in panels:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    panels[-1][0].legend(
        found.values(),
        found,
        title=by,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        alignment="left",
        handlelength=2.6,
    )


def _figure(cell: float) -> str:
    return f"{cell:,.0f}" if abs(cell) >= 999.5 else f"{cell:.3g}"


def _ticks(values: Sequence[Any], scale: float) -> list[str]:
    numbers = all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)
    return [f"{value * scale:g}" for value in values] if numbers else short_names(values)


def short_names(values: Sequence[Any]) -> list[str]:
    """The values as text. Of paths, as much of their ends as makes them different."""
    names = [str(value) for value in values]
    parts = [Path(name).with_suffix("").parts if "/" in name and Path(name).suffix else (name,) for name in names]
    for length in range(1, max(map(len, parts), default=0) + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(set(names)):
            return short
    return names


def _name_ticks(axis: Any, at: Any, names: Sequence[str]) -> None:
    """Names along the x axis, slanted where they would meet."""
    axis.set_xticks(at, names)
    across = axis.get_subplotspec().get_gridspec().ncols
    letters = _LEVEL_LETTERS if across == 1 else _LEVEL_LETTERS_OF_PANELS
    # Each has as much room as the longest.
    if len(names) * (1 + max(map(len, names), default=0)) > letters:
        axis.tick_params(axis="x", rotation=30)
        for label in axis.get_xticklabels():
            label.set_horizontalalignment("right")
