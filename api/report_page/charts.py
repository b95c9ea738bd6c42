"""The charts of a report: plotly figures, which zoom and tell what stands under the pointer.

Colours and marks are those of the printed pictures; text and grid are grey, legible on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.analysis.figures import FIGURES
from kvferry.analysis.figures import label_of as name_of
from kvferry.analysis.reproduction.verdict import TOLERANCE, over_paper
from kvferry.analysis.style import SERIES
from kvferry.specs import human

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_PATTERNS = ("", "/", "x", ".", "-", "+", "\\")
_GREY, _GRID = "#808080", "rgba(128,128,128,0.25)"
# Neighbouring spans of a lane are drawn as one where nothing between them is as long as this share of the run.
_FINEST = 1 / 2000
# In pixels: of the mode bar, whose buttons stand in one column, or in three where a chart is lower than they are.
_MODE_BAR_WIDTH, _MODE_BAR_HEIGHT = 44, 260
_LOW_MODE_BAR_WIDTH = 78
# Of a lane.
_MOST_BOXES = 4000
# Marks that are drawn one by one.
_MOST_DRAWN = 2000


def label_of(figure: str, of_devices: bool) -> str:
    """ "TTFT, mean (s)": what a metric is called, with its unit. `of_devices`: devices have a cloud."""
    label = name_of(figure, of_devices)
    unit = next((unit for ending, unit in _UNITS.items() if figure.endswith(ending)), "")
    return f"{label} ({unit})" if unit else label


_UNITS = {"_bytes_per_s": "B/s", "_bytes": "B", "_j": "J", "_per_s": "", "_s": "s"}


def bars(values: Mapping[str, float], figure: str, of_devices: bool = False) -> Figure:
    """A bar per system, shortest first where less is better. `of_devices`: devices have a cloud."""
    import plotly.graph_objects as go

    better = FIGURES[figure].better if figure in FIGURES else None
    names = sorted(values, key=lambda name: values[name], reverse=better == "high")
    bar = go.Bar(
        x=[values[name] for name in names],
        y=names,
        orientation="h",
        marker={"color": SERIES[0]},
        text=[human.of_unit(figure)(values[name]) for name in names],
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    drawn = _figure(go.Figure(bar), height=90 + 34 * len(names))
    drawn.update_xaxes(title=label_of(figure, of_devices), rangemode="tozero")
    return drawn.update_yaxes(autorange="reversed")


def timeline(spans: pd.DataFrame) -> Figure:
    """What each resource did when: a lane per resource, boxes of what ran, told apart by colour and pattern.

    Spans that follow each other more closely than one can see are drawn as one box, which tells how many they are.
    """
    import plotly.graph_objects as go

    boxes = _joined(spans)
    kinds = list(dict.fromkeys(spans["label"]))
    drawn = go.Figure()
    for n, kind in enumerate(kinds):
        of_kind = boxes[boxes["label"] == kind]
        drawn.add_bar(
            name=kind,
            base=of_kind["start_s"],
            x=of_kind["end_s"] - of_kind["start_s"],
            y=of_kind["resource"],
            orientation="h",
            marker={
                "color": SERIES[n % len(SERIES)],
                "line": {"width": 0},
                # Another one where colours come again: no two kinds look alike.
                "pattern": {"shape": _PATTERNS[(n + n // len(SERIES)) % len(_PATTERNS)], "size": 6},
            },
            customdata=of_kind[["end_s", "spans", "n_bytes"]],
            hovertemplate=f"{kind}: %{{base:.6g}} s to %{{customdata[0]:.6g}} s<br>%{{customdata[1]}} spans,"
            " %{customdata[2]:.4s}B<extra>%{y}</extra>",
        )
    drawn.update_layout(barmode="overlay")
    _figure(drawn, height=140 + 46 * spans["resource"].nunique())
    return drawn.update_xaxes(title="seconds since the start")


def _joined(spans: pd.DataFrame) -> pd.DataFrame:
    """Spans as boxes: of one resource and label, those with no gap between them that could be seen become one."""
    if spans.empty:
        return spans.assign(spans=0)
    ordered = spans.sort_values(["resource", "label", "start_s"])
    lanes = ordered.groupby(["resource", "label"], sort=False)
    length_s = spans["end_s"].max() - spans["start_s"].min()
    gap_s = ordered["start_s"] - lanes["end_s"].cummax().groupby([ordered["resource"], ordered["label"]]).shift()
    finest_s = _FINEST * length_s
    # A span that can be seen by itself stays one.
    apart = gap_s.isna() | (gap_s > finest_s) | (ordered["end_s"] - ordered["start_s"] > 20 * finest_s)
    box = apart.cumsum()
    found = ordered.groupby(box).agg(
        resource=("resource", "first"),
        label=("label", "first"),
        start_s=("start_s", "min"),
        end_s=("end_s", "max"),
        n_bytes=("n_bytes", "sum"),
        spans=("start_s", "size"),
    )
    return found.groupby(["resource", "label"], sort=False).head(_MOST_BOXES)


def scatter(table: pd.DataFrame, settings: Sequence[str], figures: Sequence[str], by: str | None) -> Figure:
    """Points over a setting, a colour and mark for each value of `by`, "not set" where a point has none.

    One menu chooses which of `figures` is shown, and one over which of `settings`; both say how many points have no
    value of what they name."""
    import plotly.graph_objects as go

    groups = [("all", table)]
    if by is not None:
        named = table[by].map(lambda value: str(value) if value == value and value is not None else "not set")
        groups = [(str(name), rows) for name, rows in table.groupby(named, sort=True)]
    # A browser draws thousands of marks faster on its graphics processor.
    kind = go.Scatter if len(table) <= _MOST_DRAWN else go.Scattergl
    drawn = go.Figure()
    for n, (name, rows) in enumerate(groups):
        drawn.add_trace(
            kind(
                name=name,
                x=rows[settings[0]],
                y=rows[figures[0]],
                mode="markers",
                marker={"color": SERIES[n % len(SERIES)], "symbol": _MARKERS[n % len(_MARKERS)], "size": 8},
                hovertemplate=f"{name}<br>%{{x}}<br>%{{y:.4g}}<extra></extra>",
            )
        )

    of_devices = "total_energy_j" in table.columns
    labels = {column: label_of(column, of_devices) + _without(table[column]) for column in (*settings, *figures)}

    def menu(axis: str, columns: Sequence[str], place: dict[str, Any]) -> dict[str, Any]:
        buttons = [
            {
                "label": labels[column],
                "method": "update",
                "args": [{axis: [rows[column] for _, rows in groups]}, {f"{axis}axis.title.text": labels[column]}],
            }
            for column in columns
        ]
        return {"buttons": buttons, "font": {"color": _GREY}, "bgcolor": "rgba(128,128,128,0.1)", **place}

    _figure(drawn, height=520)
    above = {"x": 0, "xanchor": "left", "y": 1.1, "yanchor": "bottom"}
    below = {"x": 1, "xanchor": "right", "y": -0.12, "yanchor": "top", "direction": "up"}
    drawn.update_layout(
        updatemenus=[menu("y", figures, above), menu("x", settings, below)], showlegend=by is not None, margin_t=110
    )
    drawn.update_xaxes(title=labels[settings[0]])
    return drawn.update_yaxes(title=labels[figures[0]], rangemode="tozero")


def _without(column: pd.Series[Any]) -> str:
    missing = int(column.isna().sum())
    return f"; {missing:,} of {len(column):,} points have none" if missing else ""


def claims_chart(claims: Sequence[Mapping[str, Any]]) -> Figure:
    """Ours over the paper's, claim by claim, on a logarithmic axis: filled where it is hit, hollow where missed, a
    square where it was fitted on. A sweep has a mark at either end."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    for verdict, colour, hollow in (("hit", SERIES[0], ""), ("miss", SERIES[3], "-open")):
        for fitted, shape in ((False, "circle"), (True, "square")):
            marks = [
                (claim, ratio)
                for claim in claims
                if claim["verdict"].startswith(verdict) and bool(claim.get("fitted")) is fitted
                for ratio in over_paper({"statistic": "value"} | dict(claim))
                if ratio > 0
            ]
            if fitted and not marks:
                continue
            drawn.add_scatter(
                name=f"{verdict}, fitted" if fitted else verdict,
                x=[ratio for _, ratio in marks],
                y=[claim["id"] for claim, _ in marks],
                mode="markers",
                marker={"symbol": shape + hollow, "color": colour, "size": 11, "line": {"width": 2, "color": colour}},
                text=[claim["what"] for claim, _ in marks],
                hovertemplate="%{y}: %{x:.3g} times the paper's<br>%{text}<extra></extra>",
            )
    drawn.add_vrect(x0=1 / (1 + TOLERANCE), x1=1 + TOLERANCE, fillcolor=_GREY, opacity=0.2, line_width=0)
    _figure(drawn, height=140 + 20 * len(claims))
    drawn.update_xaxes(
        title="ours over the paper's; 1: inside the printed interval; a sweep has two ends; grey: within 15 %",
        type="log",
    )
    ids = [claim["id"] for claim in claims]
    return drawn.update_yaxes(autorange="reversed", type="category", categoryorder="array", categoryarray=ids)


def _figure(drawn: Figure, height: int) -> Figure:
    drawn.update_layout(
        height=height,
        # On the right there is room for the mode bar, which so lies over nothing.
        margin={"l": 10, "r": _MODE_BAR_WIDTH if height > _MODE_BAR_HEIGHT else _LOW_MODE_BAR_WIDTH, "t": 40, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _GREY, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.01, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": _GREY, "activecolor": SERIES[0], "orientation": "v"},
        template="none",
    )
    drawn.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
    return drawn.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
