"""Pictures for a paper: at a column's width, in its small letters; the caption says what stood around the panels."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Letters in a column of the usual two, and how high a picture is beside its width, of all its panels.
_POINTS, _SMALL_POINTS = 7.0, 6.5
_LEAST_ASPECT = 0.55
# Letters of a legend's entry, its handle included, that fit into an inch.
_LETTERS_PER_INCH = 16


def fit(figure: Figure, width_in: float) -> None:
    """Makes a drawn figure this wide. Titles and notes go, legends move below the panels."""
    from matplotlib.text import Text

    width, height = figure.get_size_inches()
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    figure.suptitle("")
    figure.supxlabel("")
    alone = len([axes for axes in figure.axes if axes.get_subplotspec() is not None]) == 1
    for axes in figure.axes:
        if alone:
            axes.set_title("")
            axes.set_title("", loc="left")
        # What stands above the first panel says what marks are, which the caption does.
        for note in list(axes.texts):
            if note.get_transform() == axes.transAxes or getattr(note, "xycoords", None) == "axes fraction":
                note.remove()
    for text in figure.findobj(Text):
        text.set_fontsize(_POINTS if float(text.get_fontsize()) >= 9 else _SMALL_POINTS)
    rows = sum(_moved_below(figure, legend, width_in) for legend in legends)
    figure.set_size_inches(width_in, width_in * max(_LEAST_ASPECT, height / width) + 0.16 * rows)


def _moved_below(figure: Figure, legend: Any, width_in: float) -> int:
    """Returns how many lines the legend has there."""
    handles, names = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
    title = legend.get_title().get_text()
    legend.remove()
    letters = 5 + max(map(len, names), default=1)
    columns = max(1, min(len(names), int(width_in * _LETTERS_PER_INCH) // letters))
    figure.legend(
        handles,
        names,
        title=title or None,
        loc="outside lower center",
        ncols=columns,
        fontsize=_SMALL_POINTS,
        title_fontsize=_SMALL_POINTS,
        handlelength=2.0,
        columnspacing=1.0,
    )
    return 1 + ceil(len(names) / columns)
