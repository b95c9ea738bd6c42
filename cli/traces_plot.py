"""Traces as a picture: each over time, then all their distributions and memories beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.specs.errors import InputError
from kvferry.traces.derived import shifted, trimmed
from kvferry.traces.format import StoredTrace
from kvferry.traces.statistics import autocorrelation, means_over, quantiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TRACES = 4
_LONGEST_LAG_S = 30
_LEVELS = np.linspace(0, 1, 401)
# How a rate is drawn: its factor and what the axis says.
_UNITS = {"bandwidth": (8e-6, "Mbit/s"), "load": (100.0, "% of the processor")}


def draw_traces(traces: Mapping[str, StoredTrace], span_s: tuple[float | None, float | None]) -> dict[str, bytes]:
    """The picture as {"png": ..., "svg": ...}. Raises InputError for a span that a trace does not have."""
    return style.render(lambda: _figure(traces, span_s))


def _figure(traces: Mapping[str, StoredTrace], span_s: tuple[float | None, float | None]) -> Figure:
    figure = style.new_figure(8.0, 1.5 * len(traces) + 2.8)
    grid = figure.add_gridspec(len(traces) + 1, 2, height_ratios=[*[1.0] * len(traces), 1.5])
    panels = [figure.add_subplot(grid[row, :]) for row in range(len(traces))]
    highest = max(
        [_over_time(axis, name, traces[name], span_s) for axis, name in zip(panels, traces, strict=True)] + [1e-9]
    )
    for axis in panels:
        axis.set_ylim(0, 1.05 * highest)
    panels[-1].set_xlabel("time (s)")
    below = figure.add_subplot(grid[-1, 0])
    _distributions(below, traces)
    _memories(figure.add_subplot(grid[-1, 1]), traces)
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=len(traces))
    return figure


def _over_time(axis: Axes, name: str, stored: StoredTrace, span_s: tuple[float | None, float | None]) -> float:
    """Draws one trace; its highest rate, in the axis' unit."""
    factor, unit = _UNITS[stored.kind]
    start_s, end_s = span_s[0] or 0.0, stored.trace.duration_s if span_s[1] is None else span_s[1]
    try:
        edges, rates = stored.trace.segments(start_s, end_s)
        seconds = means_over(trimmed(shifted(stored.trace, start_s), 0, end_s - start_s), 1.0)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    smooth = len(seconds) > 1 and len(rates) > 2 * len(seconds)
    colour, width = (style.GREY, 0.5) if smooth else (style.BLUE, 1.0)
    axis.stairs(rates * factor, edges, baseline=None, color=colour, linewidth=width, label="as it plays")
    if smooth:
        whole = start_s + np.arange(len(seconds) + 1)
        axis.stairs(
            seconds * factor, whole, baseline=None, color=style.BLUE, linewidth=1.2, label="mean of each second"
        )
        # Beside the title: within the axes it would lie on the data.
        axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=2, borderaxespad=0.0)
    axis.set(title=name, ylabel=unit, xlim=(start_s, end_s))
    return float(rates.max()) * factor


def _distributions(axis: Axes, traces: Mapping[str, StoredTrace]) -> None:
    for n, (name, stored) in enumerate(traces.items()):
        factor, unit = _UNITS[stored.kind]
        axis.plot(quantiles(stored.trace, _LEVELS) * factor, _LEVELS * 100, **_line(n), label=name)
        axis.set_xlabel(f"rate ({unit})")
    axis.set(ylabel="time below it (%)", ylim=(0, 100), title="Distribution")
    axis.set_xlim(left=0)
    axis.grid(visible=True)


def _memories(axis: Axes, traces: Mapping[str, StoredTrace]) -> None:
    for n, stored in enumerate(traces.values()):
        seconds = means_over(stored.trace, 1.0)
        found = [(lag, autocorrelation(seconds, lag)) for lag in range(1, _LONGEST_LAG_S + 1)]
        lags = [0, *(lag for lag, value in found if value is not None)]
        axis.plot(lags, [1.0, *(value for _, value in found if value is not None)], **_line(n))
    axis.set(xlabel="lag (s)", ylabel="autocorrelation", xlim=(0, _LONGEST_LAG_S), title="Memory of 1 s means")
    axis.set_ylim(top=1.0)
    axis.axhline(0, color=style.GREY, linewidth=0.6)
    axis.grid(visible=True)


def _line(n: int) -> dict[str, Any]:
    return {"color": style.SERIES[n], "linestyle": style.LINES[n]}
