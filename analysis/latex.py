"""Tables for a paper: what a plot's marks show, or systems beside each other, in LaTeX with booktabs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis.figures import FIGURES, label_of
from kvferry.analysis.plots import Axis, short_names
from kvferry.analysis.quality import MARK, lower_quality
from kvferry.specs import human

if TYPE_CHECKING:
    import pandas as pd

_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "µ": r"\textmu{}"}
_ESCAPED = re.compile(r"[\\~^µ&%$#_{}]")


def latex_of(kind: str, rows: pd.DataFrame, arguments: Mapping[str, Any], behind: str) -> str | None:
    """Returns a plot's figures: medians at each x, a column per series; None for a kind whose marks are too many to
    read."""
    facet = arguments["facet"]
    if kind in ("line", "bar"):
        x, y, by = arguments["x"], arguments["y"], arguments.get("by")
        found = _medians(rows, [x, *([] if by is None else [by])], y, facet)
        return _table([x.label, *found.columns], _lines(found), f"{y.label}, medians; {behind}")
    if kind == "heat_map":
        x, y, value = arguments["x"], arguments["y"], arguments["value"]
        found = _medians(rows, [y, x], value, facet)
        return _table([f"{y.label} / {x.label}", *found.columns], _lines(found), f"{value.label}, medians; {behind}")
    if kind == "stack":
        x, parts = arguments["x"], arguments["parts"]
        named: dict[str, str] = {part.column: part.label for part in parts}
        means = rows.fillna(dict.fromkeys(named, 0.0)).groupby(_keys(x.column, facet), sort=False)[list(named)].mean()
        means = means * np.array([part.scale for part in parts])
        return _table([x.label, *named.values()], _lines(means, x), f"means; {behind}")
    return None


def comparison_latex(systems: Mapping[str, Mapping[str, float]], figures: Sequence[str], title: str) -> str:
    """Systems beside each other by these figures, the ones that any of them has."""
    shown = [key for key in figures if any(key in one for one in systems.values())]
    lesser = lower_quality(systems)
    of_devices = any("total_energy_j" in one for one in systems.values())
    lines = [
        [f"{name} {MARK}" if name in lesser else name]
        + [human.of_unit(key)(one[key]) if key in one else "" for key in shown]
        for name, one in systems.items()
    ]
    notes = "; ".join(f"{name}{MARK}: {why}" for name, why in lesser.items())
    heads = ["system", *(label_of(key, of_devices) if key in FIGURES else key for key in shown)]
    return _table(heads, lines, f"{title}; {notes}" if notes else title)


def _medians(rows: pd.DataFrame, keys: Sequence[Axis | str], value: Axis, facet: str | None) -> pd.DataFrame:
    """Medians by the first key, and panel, a column for each value of the second."""
    first, *others = keys
    assert isinstance(first, Axis)
    index = _keys(first.column, facet)
    across = [one.column if isinstance(one, Axis) else one for one in others]
    medians = rows.groupby([*index, *across], sort=False)[value.column].median() * value.scale
    if not across:
        return _scaled(medians.to_frame(value.label), first)
    wide = medians.unstack(sort=False)
    scale = others[0].scale if isinstance(others[0], Axis) else 1.0
    wide.columns = [_number(float(one) * scale) if scale != 1.0 else one for one in wide.columns]
    wide.columns = short_names([*wide.columns])
    return _scaled(wide, first)


def _keys(column: str, facet: str | None) -> list[str]:
    return [column] if facet is None else [facet, column]


def _scaled(table: pd.DataFrame, first: Axis) -> pd.DataFrame:
    return table.set_axis(_named(table.index, first), axis=0)


def _named(index: Any, first: Axis) -> list[str]:
    at = [one if isinstance(one, tuple) else (one,) for one in index]
    own = [one[-1] for one in at]
    numbers = all(isinstance(one, int | float) or hasattr(one, "dtype") for one in own)
    names = [_number(float(one) * first.scale) for one in own] if numbers else short_names(own)
    return [", ".join((*map(str, one[:-1]), name)) for one, name in zip(at, names, strict=True)]


def _lines(table: pd.DataFrame, first: Axis | None = None) -> list[list[str]]:
    names = [str(one) for one in table.index] if first is None else _named(table.index, first)
    rows = table.to_numpy(float)
    return [[name, *("" if one != one else _number(one) for one in row)] for name, row in zip(names, rows, strict=True)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(heads: Sequence[object], lines: Sequence[Sequence[str]], caption: str) -> str:
    def row(cells: Sequence[object]) -> str:
        return " & ".join(map(_escaped, cells)) + r" \\"

    body = "\n".join(row(line) for line in lines)
    return (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table}\n\\centering\\small\n"
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n\\toprule\n{row(heads)}\n\\midrule\n{body}\n\\bottomrule\n"
        f"\\end{{tabular}}\n\\caption{{{_escaped(caption)}}}\n\\end{{table}}\n"
    )


def _escaped(text: object) -> str:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[0], f"\\{found[0]}"), str(text))
