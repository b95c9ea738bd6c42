"""Pictures of an answer: a figure over contexts by system, with the limits of the device, and maps of which wins
where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.advice.composition import LOSSES
from kvferry.advice.question import Question
from kvferry.advice.study import Map, rule_of, winner
from kvferry.analysis.folder import write_pictures
from kvferry.analysis.plots import Axis, line
from kvferry.analysis.style import GREY, INK, SERIES, new_figure, render
from kvferry.specs import human

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Values that differ by more than this stand along a logarithmic axis.
_WIDE = 10
# In a cell of a map that the time did not suffice for.
NOT_RUN = "?"
_CONTEXT = Axis("workload.context", "context, Ki tokens", 1 / 1024, log=True)
# Per picture the figure, its title, and a horizontal line that limits it.
OVER_CONTEXTS: Mapping[str, tuple[Axis, str]] = {
    "ttft": (Axis("ttft_s", "TTFT, mean, s"), "Time to first token"),
    "rate": (Axis("rate", "tokens/s while decoding"), "Tokens per second"),
    "memory": (Axis("memory_peak_bytes", "memory peak, GB", 1e-9), "Memory"),
}


def over_contexts(points: pd.DataFrame, limits: Mapping[str, float], folder: Path, about: str) -> list[Path]:
    """Draws each figure over contexts, a line per system, and the limits by name in the picture of memory; returns the
    files. A line ends where its system runs out of memory."""
    done = points[points["outcome"] == "done"]
    done = done.assign(rate=1 / done["tpot_s"], system=done["name"])
    found: list[Path] = []
    for name, (figure, title) in OVER_CONTEXTS.items():

        def draw(name: str = name, figure: Axis = figure, title: str = title) -> Figure:
            values = done[figure.column].dropna()
            wide = len(values) and name != "memory" and values.max() > _WIDE * values.min()
            drawn = line(done, _CONTEXT, replace(figure, log=bool(wide)), by="system", title=f"{title} ({about})")
            if wide:
                _plain_numbers(drawn)
            if not wide:
                most = max([values.max(), *(limits.values() if name == "memory" else ())])
                drawn.axes[0].set_ylim(0, 1.1 * figure.scale * most)
            if name == "memory":
                _limits(drawn, limits)
            return drawn

        found += write_pictures(folder / name, render(draw))
    return found


def _limits(drawn: Figure, limits: Mapping[str, float]) -> None:
    """Draws limits as lines: the name of the highest above its line, and of others, that may be near it, below."""
    axis = drawn.axes[0]
    for n, (what, n_bytes) in enumerate(sorted(limits.items(), key=lambda one: -one[1])):
        axis.axhline(n_bytes / 1e9, color=INK, linestyle=(0, (2, 2)), linewidth=1.0)
        axis.annotate(
            f"{what}: {human.size(n_bytes)}", (0.01, n_bytes / 1e9), xycoords=("axes fraction", "data"),
            xytext=(0, -3 if n else 3), textcoords="offset points", va="top" if n else "bottom", size=8, color=INK,
        )  # fmt: skip


def _plain_numbers(drawn: Figure) -> None:
    """Writes the numbers of a logarithmic axis out: 1, 2, 5, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = drawn.axes[0].yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def cells_of(
    question: Question, one: Map, losses: Mapping[str, int]
) -> tuple[list[Any], list[Any], list[list[str | None]]]:
    """Returns the contexts, the other axis' values, and the winner at each: rows by the other axis, from the least.
    NOT_RUN stands where not all systems were run."""
    contexts, others = sorted(one.points["workload.context"].unique()), sorted(one.points[one.column].unique())

    def at(x: Any, y: Any) -> str | None:
        rows = one.points[(one.points["workload.context"] == x) & (one.points[one.column] == y)]
        return winner(question, rows, losses) if set(rows["name"]) == set(losses) else NOT_RUN

    return contexts, others, [[at(x, y) for x in contexts] for y in others]


def draw_map(
    question: Question, one: Map, losses: Mapping[str, int], label: str, folder: Path, about: str
) -> list[Path]:
    """Draws which system wins at each context and value of the other axis: by colour, and by a letter that is legible
    without colours; hatched where none fits."""
    contexts, others, table = cells_of(question, one, losses)
    choice, given_up = next(iter(losses.items()))
    rule = rule_of(question, given_up == LOSSES.index("coarser") and "KV of" in choice)
    names = [name for name in losses if any(name in row for row in table)]

    def draw() -> Figure:
        from matplotlib.patches import Rectangle

        figure = new_figure(6.4, 2.0 + 0.45 * len(others) + 0.22 * len(names))
        axis = figure.add_subplot()
        for y, row in enumerate(table):
            for x, name in enumerate(row):
                if name != NOT_RUN:
                    _cell(axis, Rectangle, (x, y), None if name is None else names.index(name))
        axis.set_xlim(0, len(contexts))
        axis.set_ylim(0, len(others))
        axis.set_xticks([n + 0.5 for n in range(len(contexts))], [f"{value / 1024:g}" for value in contexts])
        axis.set_yticks([n + 0.5 for n in range(len(others))], _shown(one.column, others))
        axis.set_xlabel(_CONTEXT.label)
        axis.set_ylabel(label)
        axis.set_title(f"Which system wins ({about})")
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=SERIES[n % len(SERIES)], alpha=0.45, label=f"{_letter(n)}  {name}")
            for n, name in enumerate(names)
        ]
        if any(name is None for row in table for name in row):
            none = "none fits and keeps the limits" if question.limits else "none fits"
            handles.append(Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=GREY, hatch="////", label=none))
        if any(name == NOT_RUN for row in table for name in row):
            handles.append(Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=GREY, label="not run: no time"))
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=1,
            title=rule.replace("; ", ";\n"),
            alignment="left",
        )
        return figure

    return write_pictures(folder / one.name, render(draw))


def _cell(axis: Any, rectangle: Any, at: tuple[int, int], n: int | None) -> None:
    if n is None:
        axis.add_patch(rectangle(at, 1, 1, facecolor="white", edgecolor=GREY, hatch="////", linewidth=0.5))
        return
    axis.add_patch(rectangle(at, 1, 1, facecolor=SERIES[n % len(SERIES)], alpha=0.45, edgecolor="white"))
    axis.annotate(_letter(n), (at[0] + 0.5, at[1] + 0.5), ha="center", va="center", weight="bold", color=INK)


def _letter(n: int) -> str:
    return "ABCDEFGHIJ"[n]


def _shown(column: str, values: Sequence[float]) -> list[str]:
    write = human.of_unit(column)
    return [write(value) for value in values]
