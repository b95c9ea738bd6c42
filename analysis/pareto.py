"""Which points no other one beats in every objective, and their picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.plots import Axis
from kvferry.analysis.style import BLUE, GREY, INK, MARKERS, SERIES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_ACROSS = 3
# With more of them, numbers beside the marks would hide each other.
_MOST_NUMBERED = 25
# What a number takes of a panel's width and height.
_LABEL = np.array([0.06, 0.06])


def front_of(values: np.ndarray, lower: Sequence[bool]) -> np.ndarray:
    """Which rows of `values` (points, objectives) lie on the Pareto front: none is at least as good in every objective
    and better in one. `lower`: whether less is better, by objective. Returns booleans (points,)."""
    costs = np.where(lower, values, -values)
    return np.array(
        [not np.any(np.all(costs <= point, axis=1) & np.any(costs < point, axis=1)) for point in costs], dtype=bool
    )


def pareto_picture(
    solutions: np.ndarray,
    others: np.ndarray,
    front: np.ndarray,
    axes: Sequence[Axis],
    lower: Sequence[bool],
    *,
    names: Sequence[str] = (),
    title: str = "",
    note: str = "",
) -> Figure:
    """A panel per pair of objectives: solutions (points, objectives), those on the `front` (booleans) filled and named,
    and as crosses `others`, which break a constraint. Two objectives alone have their front as a staircase.

    Told apart by marker and filling, so that it reads in black and white. Raises ValueError when there is no solution.
    """
    if not len(solutions):
        raise ValueError("nothing to draw: no point keeps every constraint")
    pairs = list(combinations(range(len(axes)), 2))
    across = min(len(pairs), _ACROSS)
    down = -(-len(pairs) // across)
    figure = style.new_figure(6.6 if across == 1 else 1.0 + 3.9 * across, 4.0 * down + 0.5)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
    for panel, (one, other) in zip(panels, pairs, strict=False):
        scale = np.array([axes[one].scale, axes[other].scale])
        own, crosses = solutions[:, [one, other]] * scale, others[:, [one, other]] * scale
        _draw_pair(panel, own, crosses, front, names if sum(map(bool, names)) <= _MOST_NUMBERED else ())
        if len(pairs) == 1:
            _draw_staircase(panel, own[front], (lower[one], lower[other]))
        for which, label in ((one, panel.set_xlabel), (other, panel.set_ylabel)):
            label(f"{axes[which].label}, {'less' if lower[which] else 'more'} is better")
    for panel in panels[len(pairs) :]:
        panel.remove()
    handles, labels = panels[0].get_legend_handles_labels()
    _legend(figure, handles, labels, ncols=2, title=note)
    return figure


def pareto(
    frame: pd.DataFrame,
    x: Axis,
    y: Axis,
    *,
    lower: tuple[bool, bool],
    same: Sequence[str] = (),
    by: str | None = None,
    title: str = "",
    facet: str | None = None,
    note: str = "",
) -> Figure:
    """A mark at the medians of x and y of each group of rows with the same values of these columns (seeds are what
    remains), of another kind for each value of `by`; filled and joined where no other mark beats it. `lower`: whether
    less of x, and of y, is better. There are no panels: `facet` is None.

    Raises ValueError when no row has both values.
    """
    rows = frame.dropna(subset=[x.column, y.column])
    if rows.empty:
        raise ValueError(f"no row has both {x.column} and {y.column}")
    keys = list(dict.fromkeys([*same, *([by] if by else [])]))
    groups = [group for _, group in rows.groupby(keys, dropna=False, sort=False)] if keys else [rows]
    at = np.array([[group[x.column].median() * x.scale, group[y.column].median() * y.scale] for group in groups])
    of = [str(group[by].iloc[0]) if by else "" for group in groups]
    front = front_of(at, lower)
    figure = style.new_figure(6.6, 4.5)
    panel = figure.subplots()
    panel.set_title(title)
    corners = at[front]
    _draw_staircase(panel, corners, lower)
    for n, name in enumerate(dict.fromkeys(of)):
        own = np.array([one == name for one in of])
        look: dict[str, Any] = {
            # Once all colours are used they come again, with other markers.
            "linestyle": "none", "marker": MARKERS[(n + n // len(SERIES)) % len(MARKERS)],
            "color": SERIES[n % len(SERIES)], "markersize": 6,
        }  # fmt: skip
        panel.plot(*at[own & ~front].T, **look, markerfacecolor="white", zorder=2)
        panel.plot(*at[own & front].T, **look, zorder=4)
        panel.plot([], [], **look, label=name or "on the Pareto front")
    panel.plot([], [], linestyle="none", marker="o", color=GREY, markerfacecolor="white", label="beaten by another")
    for axis, label, scale, less in (
        (x, panel.set_xlabel, panel.set_xscale, lower[0]),
        (y, panel.set_ylabel, panel.set_yscale, lower[1]),
    ):
        label(f"{axis.label}, {'less' if less else 'more'} is better")
        if axis.log:
            scale("log")
    panel.margins(0.08)
    panel.grid()
    what = f"filled: on the Pareto front{f'; by {by}' if by else ''}"
    _legend(figure, *panel.get_legend_handles_labels(), ncols=4, title="\n".join(filter(None, (note, what))))
    return figure


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], *, ncols: int, title: str) -> None:
    """Below the panels, what stands behind the marks above it: two texts at one edge would lie on each other."""
    figure.legend(
        handles, labels, loc="outside lower left", ncols=ncols, title=title or None, alignment="left",
        title_fontproperties={"size": 8},
    )  # fmt: skip


def progress_picture(
    best: Sequence[tuple[int, float]], all_: Sequence[tuple[int, float]], axis: Axis, *, title: str = "", note: str = ""
) -> Figure:
    """For a single objective: what each point reached, by its number, and the best up to then as a step line.

    Raises ValueError when there is no solution.
    """
    if not best:
        raise ValueError("nothing to draw: no point keeps every constraint")
    figure = style.new_figure(6.6, 3.9)
    panel = figure.subplots()
    panel.set_title(title)
    at, reached = np.array(all_, float).T
    panel.plot(at, reached * axis.scale, **_HOLLOW, label="a point that keeps every constraint")
    at, reached = np.array([*best, (all_[-1][0], best[-1][1])], float).T
    panel.step(at, reached * axis.scale, where="post", color=BLUE, label="best so far")
    panel.set_xlabel("point")
    panel.set_ylabel(axis.label)
    panel.grid()
    _legend(figure, *panel.get_legend_handles_labels(), ncols=2, title=note)
    return figure


_HOLLOW: dict[str, Any] = {
    "linestyle": "none", "marker": "o", "markersize": 5, "markerfacecolor": "white", "color": GREY, "zorder": 2,
}  # fmt: skip
_FILLED: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6.5, "color": BLUE, "zorder": 4}
_CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 4.5, "color": GREY, "zorder": 1}


def _draw_pair(panel: Any, own: np.ndarray, crosses: np.ndarray, front: np.ndarray, names: Sequence[str]) -> None:
    numbered = ", with its number where there is room" if any(names) else ""
    for part, how, label in (
        (own[front], _FILLED, f"on the Pareto front{numbered}"),
        (own[~front], _HOLLOW, "beaten by another point"),
        (crosses, _CROSS, "breaks a constraint"),
    ):
        if len(part):
            panel.plot(*part.T, **how, label=label)
    extent = np.ptp(np.concatenate((own, crosses)), axis=0)
    named: list[np.ndarray] = []
    for name, point in zip(names, own[front], strict=False):
        # Two numbers in one place could not be read.
        if name and not any(np.all(np.abs(point - other) < _LABEL * extent) for other in named):
            named.append(point)
            panel.annotate(name, point, xytext=(5, 4), textcoords="offset points", size=8, color=INK, zorder=5)
    panel.margins(0.08)
    panel.locator_params(nbins=6)
    panel.grid()


def _draw_staircase(panel: Any, front: np.ndarray, lower: tuple[bool, bool]) -> None:
    """The border of what the front beats."""
    corners = front[np.argsort(front[:, 0], kind="stable")]
    where = "post" if lower[0] else "pre"
    panel.step(*corners.T, where=where, color=BLUE, linewidth=1.0, linestyle="--", zorder=3)
