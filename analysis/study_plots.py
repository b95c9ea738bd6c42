"""The pictures that a study asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis import human
from kvferry.analysis.folder import write_pictures
from kvferry.analysis.plots import PLOTS, Axis
from kvferry.analysis.settings import column_of
from kvferry.analysis.study_spec import PlotSpec
from kvferry.analysis.style import render
from kvferry.analysis.tables import FIGURES
from kvferry.specs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# The unit of a whole axis, by the function that formats single values.
_UNITS: dict[Callable[[float], str], tuple[str, float]] = {
    human.seconds: ("s", 1.0),
    human.rate: ("Mbit/s", 8e-6),
    human.size: ("MB", 1e-6),
    human.energy: ("J", 1.0),
    human.percent: ("%", 100.0),
}
_TOKENS = ("workload.context", "workload.question", "workload.output", "workload.chunk_tokens")


def draw_plots(frame: pd.DataFrame, plots: Sequence[PlotSpec], folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Write each plot of a study's results as PNG and SVG; returns the files, and by name why one was not drawn.

    Only points whose outcome is "done" are drawn: figures of an unfinished run would look too good.
    """
    done = frame[frame["outcome"] == "done"]
    written: list[Path] = []
    left_out: dict[str, str] = {}
    names: list[str] = []
    for plot in plots:
        names.append(_name(plot, names))
        try:
            pictures = render(lambda plot=plot: PLOTS[plot.kind](done, **_arguments(plot, done.columns)))  # type: ignore[misc]
        except (InputError, ValueError) as error:  # no point was done, or none has this metric
            left_out[names[-1]] = str(error)
        else:
            written += write_pictures(folder / names[-1], pictures)
    return written, left_out


def _name(plot: PlotSpec, taken: Collection[str]) -> str:
    name = plot.name or "-".join((plot.kind, *plot.columns.values()))
    return name if name not in taken else f"{name}-{len(taken) + 1}"


def _arguments(plot: PlotSpec, columns: Collection[str]) -> dict[str, Any]:
    """The arguments of the plot's function in analysis.plots."""
    found: dict[str, Any] = {"title": plot.title}
    for key, named in plot.columns.items():
        column = column_of(named, columns) or named
        found[key] = column if key == "by" else _axis(named, column, key in plot.log)
    if plot.kind == "cdf":
        found["value"] = found.pop("x")
    if plot.kind == "line":
        found["band"] = plot.band
    return found


def _axis(named: str, column: str, log: bool) -> Axis:
    label = FIGURES[column].label if column in FIGURES else named.replace(".", " ").replace("_", " ")
    unit, scale = ("Ki tokens", 1 / 1024) if column in _TOKENS else _UNITS.get(human.of_unit(column), ("", 1.0))
    return Axis(column, f"{label} ({unit})" if unit else label, scale, log)
