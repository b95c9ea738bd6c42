"""The charts of a report: plotly figures, which zoom and tell what stands under the pointer.

Colours and marks are those of the printed pictures; text and grid are grey, legible on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.analysis import human
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.style import SERIES

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_PATTERNS = ("", "/", "x", ".", "-", "+", "\\")
_GREY, _GRID = "#808080", "rgba(128,128,128,0.25)"
# Neighbouring spans of a lane are drawn as one where nothing between them is as long as this share of the run.
_FINEST = 1 / 2000
# Of a lane.
_MOST_BOXES = 4000
# Marks that are drawn one by one.
_MOST_DRAWN = 2000


def label_of(figure: str) -> str:
    """ "TTFT, mean (s)": what a metric is called, with its unit."""
    label = FIGURES[figure].label if figure in FIGURES else figure
    unit = next((unit for ending, unit in _UNITS.items() if figure.endswith(ending)), "")
    return f"{label} ({unit})" if unit else label


_UNITS = {"_bytes_per_s": "B/s", "_bytes": "B", "_j": "J", "_per_s": "", "_s": "s"}


def bars(values: Mapping[str, float], figure: str) -> Figure:
    """A bar per system, shortest first where less is better."""
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
    drawn.update_xaxes(title=label_of(figure), rangemode="tozero")
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
                "pattern": {"shape": _PATTERNS[n % 7], "size": 6},
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
    """Points over a setting, a colour and mark for each value of `by`.

    One menu chooses which of `figures` is shown, and one over which of `settings`."""
    import plotly.graph_objects as go

    groups = [("all", table)] if by is None else [(str(value), rows) for value, rows in table.groupby(by, sort=True)]
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

    def menu(axis: str, columns: Sequence[str], place: dict[str, Any]) -> dict[str, Any]:
        buttons = [
            {
                "label": label_of(column),
                "method": "update",
                "args": [{axis: [rows[column] for _, rows in groups]}, {f"{axis}axis.title.text": label_of(column)}],
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
    drawn.update_xaxes(title=label_of(settings[0]))
    return drawn.update_yaxes(title=label_of(figures[0]), rangemode="tozero")


def claims_chart(claims: Sequence[Mapping[str, Any]]) -> Figure:
    """Ours over the paper's, claim by claim: filled where it is hit, hollow where missed, on a logarithmic axis."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    for verdict, symbol, colour in (("hit", "circle", SERIES[0]), ("miss", "circle-open", SERIES[3])):
        rows = [claim for claim in claims if claim["verdict"].startswith(verdict) and _over(claim)]
        drawn.add_scatter(
            name=verdict,
            x=[_over(claim) for claim in rows],
            y=[claim["id"] for claim in rows],
            mode="markers",
            marker={"symbol": symbol, "color": colour, "size": 11, "line": {"width": 2, "color": colour}},
            text=[claim["what"] for claim in rows],
            hovertemplate="%{y}: %{x:.3g} times the paper's<br>%{text}<extra></extra>",
        )
    drawn.add_vrect(x0=1 / 1.15, x1=1.15, fillcolor=_GREY, opacity=0.2, line_width=0)
    _figure(drawn, height=140 + 20 * len(claims))
    drawn.update_xaxes(title="ours over the paper's; grey: within 15 %", type="log")
    return drawn.update_yaxes(autorange="reversed", type="category")


def _over(claim: Mapping[str, Any]) -> float | None:
    paper, ours = claim["paper_high"] or claim["paper_low"], claim["ours"]
    return ours / paper if paper and ours and ours / paper > 0 else None


def _figure(drawn: Figure, height: int) -> Figure:
    drawn.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 40, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _GREY, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.01, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": _GREY, "activecolor": SERIES[0], "orientation": "v"},
        template="none",
    )
    drawn.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
    return drawn.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
