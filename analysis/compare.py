"""Several systems side by side: their paths on one time axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvferry.analysis import style
from kvferry.analysis.decoding import paces_of
from kvferry.analysis.gantt import draw_lanes, draw_rate, legend, view_of, window_of
from kvferry.analysis.steps import carried_out, over_tokens, tokens_drawn
from kvferry.analysis.style import BLACK, GREY, VERMILION
from kvferry.analysis.timeline import resources_of
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.specs import human

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Height of the lane of a system that has nothing to draw.
_EMPTY_IN = 0.06
# Paces that differ by less are called one.
_SAME_PACE = 0.02
_HATCHES = (None, "////", "xxxx", "....", "\\\\\\\\", "||||", "----")


def compare_gantt(runs: Mapping[str, Run], *, title: str = "", request: int | None = None) -> Figure:
    """Each system's paths for one request, on a common time axis that starts at its arrival: the fastest first, systems
    that did not reach a first token next, and last, by name and outcome alone, those that have nothing to draw.

    By default the request has the median TTFT in the fastest system, among the ones that arrived at the same instant
    in all: where a request follows the answer to the one before, later ones met different stretches of the link.
    The axis ends before systems that take several times as long as the others; they are marked.
    The link is drawn when it is the same for all. Where decoding, all systems are drawn over as many tokens, from the
    first one on. Raises ValueError when no run has anything to draw.
    """
    drawable = {name: run for name, run in runs.items() if run.spans and run.requests}
    if not drawable:
        raise ValueError("nothing to draw: no run has spans")
    tokens = min(map(tokens_drawn, drawable.values()))
    empty = dict[str, str]((name, run.outcome) for name, run in runs.items() if name not in drawable)
    if tokens > 1:
        return _decode_paths(drawable, tokens, title, empty)
    request = _typical_request(drawable) if request is None else request
    records = {name: _records(run)[request] for name, run in drawable.items() if request in _records(run)}
    views = {name: view_of(drawable[name], request) for name in records}
    empty |= {name: f"no request {request}" for name in drawable if name not in records}
    order = sorted(views, key=lambda name: _sort_key(_ttft_s(views[name])))
    end_s = _axis_end_s([window_of(views[name])[1] for name in order])
    longest = max(views.values(), key=lambda view: view.duration_s)
    same_link = bool(longest.link_times_s) and len({record.arrival_s for record in records.values()}) == 1
    heights = [1.3] * same_link + [0.12 + 0.27 * len(resources_of(views[name].spans)) for name in order]
    heights += [_EMPTY_IN] * len(empty)
    figure = style.new_figure(10, 1.2 + sum(heights) + 0.12 * len(heights))
    requests = max(len(run.requests) for run in drawable.values())
    if requests > 1:
        title = f"{title}{', ' if title else ''}request {request}, one of {requests}"
    if title:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    if same_link:
        # The delivered bytes differ by system; the offered rate does not.
        draw_rate(axes[0], longest, 0.0, end_s, moved_too=False)
    for axis, name in zip(axes[same_link:], order, strict=False):
        _draw_system(axis, name, views[name], end_s)
    _draw_empty(axes[same_link + len(order) :], empty)
    axes[-1].set_xlim(0.0, end_s)
    axes[-1].set_xlabel("time since the request arrived (s)")
    legend(figure, [span for name in order for span in views[name].spans])
    return figure


def _decode_paths(runs: Mapping[str, Run], tokens: int, title: str, empty: Mapping[str, str]) -> Figure:
    """Each system's paths over the same tokens, from a request's first token on, the one that is fastest over the whole
    output first; below them the `empty` ones by name and outcome. Where these tokens are another part of the output
    than those of other systems, or were decoded at another pace than the whole, the title says so."""
    views, per_token_s, paces = dict[str, Run](), dict[str, float](), dict[str, str]()
    # Of systems that skip a part of the output, which others carry out as a whole.
    shown = next((known[:tokens] for known in map(carried_out, runs.values()) if known != range(len(known))), None)
    same = {name: shown is None or over_tokens(run, shown) is not None for name, run in runs.items()}
    for name, run in runs.items():
        view = over_tokens(run, shown if shown is not None and same[name] else carried_out(run)[:tokens])
        assert view is not None
        views[name] = view
        drawn_s = view.duration_s / (tokens - 1)
        whole = None if run.decoded is None else paces_of(run.decoded, run.requests, interrupted=run.interrupted)
        per_token_s[name] = drawn_s if whole is None else whole.tpot_s
        paces[name] = f"{human.seconds(per_token_s[name])} per token"
        if not all(same.values()) or abs(drawn_s / per_token_s[name] - 1) > _SAME_PACE:
            paces[name] += f"; {'these' if same[name] else 'its first ones'}: {human.seconds(drawn_s)}"
    order = sorted(views, key=per_token_s.__getitem__)
    end_s = _axis_end_s([views[name].duration_s for name in order])
    heights = [0.12 + 0.27 * len(resources_of(views[name].spans)) for name in order] + [_EMPTY_IN] * len(empty)
    figure = style.new_figure(10, 1.3 + sum(heights) + 0.12 * len(heights))
    output = max(run.decoded.output for run in runs.values() if run.decoded is not None)
    which = f"{'first ' * (shown is None)}{tokens:,} of {output:,}" if tokens < output else f"{tokens:,}"
    figure.suptitle(
        f"{title}{', ' if title else ''}{which} tokens of each",
        x=0.01,
        ha="left",
        weight="bold",
        size=12,
    )
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _draw_empty(axes[len(order) :], empty)
    for axis, name in zip(axes, order, strict=False):
        draw_lanes(axis, views[name].spans, resources_of(views[name].spans), 0.0, end_s)
        axis.set_title(f"{name}: {paces[name]}", pad=2)
        took_s = views[name].duration_s
        if took_s > end_s:
            axis.set_title(f"goes on to {human.seconds(took_s)} \N{RIGHTWARDS ARROW}", loc="right", size=9, pad=2)
        else:
            axis.axvline(took_s, color=BLACK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=5)
    axes[-1].set_xlim(0.0, end_s)
    axes[-1].set_xlabel("time since the first token (s)")
    legend(figure, [span for view in views.values() for span in view.spans])
    return figure


def _draw_system(axis: Any, name: str, view: Run, end_s: float) -> None:
    draw_lanes(axis, view.spans, resources_of(view.spans), 0.0, end_s)
    ttft_s = _ttft_s(view)
    if ttft_s is None:
        axis.set_title(name, pad=2)
        axis.set_title(f"no first token ({view.outcome.replace('_', ' ')})", loc="right", size=9, color=GREY, pad=2)
        return
    axis.set_title(f"{name}: {human.seconds(ttft_s)}", pad=2)
    if ttft_s > end_s:
        axis.set_title(f"goes on to {human.seconds(ttft_s)} \N{RIGHTWARDS ARROW}", loc="right", size=9, pad=2)
        return
    axis.axvline(ttft_s, color=BLACK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=5)
    axis.plot(
        [ttft_s], [1.0], transform=axis.get_xaxis_transform(), marker="*", markersize=9, color=BLACK, clip_on=False,
        zorder=6,
    )  # fmt: skip


def _draw_empty(axes: Iterable[Any], outcomes: Mapping[str, str]) -> None:
    """A line for each system that has nothing to draw."""
    for axis, (name, outcome) in zip(axes, outcomes.items(), strict=True):
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        axis.set_title(name, pad=2)
        axis.set_title(outcome.replace("_", " "), loc="right", size=9, color=VERMILION, pad=2)


def _axis_end_s(ends_s: list[float]) -> float:
    """The last end, or, from half of the systems on, the last one before which the next takes twice as long."""
    ends_s = sorted(ends_s)
    for before, after in itertools.pairwise(ends_s[(len(ends_s) - 1) // 2 :]):
        if after > 2 * before:
            return 1.05 * before
    return ends_s[-1]


def _typical_request(runs: Mapping[str, Run]) -> int:
    """The request with the median TTFT, among the ones that arrived in all runs at the same time, in the system whose
    median is the lowest; the first request where there is none."""
    arrivals = [{(r.request, r.arrival_s) for r in run.requests} for run in runs.values()]
    shared = {request for request, _ in set.intersection(*arrivals)}
    by_system = {name: sorted((t, r) for r, t in _ttfts_s(run).items() if r in shared) for name, run in runs.items()}
    medians = [(times[(len(times) - 1) // 2], name) for name, times in by_system.items() if times]
    if medians:
        return min(medians)[0][1]
    return next(iter(runs.values())).requests[0].request


def _records(run: Run) -> dict[int, RequestRecord]:
    return {record.request: record for record in run.requests}


def _ttfts_s(run: Run) -> dict[int, float]:
    return {r.request: r.first_token_s - r.arrival_s for r in run.requests if r.first_token_s is not None}


def _ttft_s(view: Run) -> float | None:
    return _ttfts_s(view).get(view.requests[0].request)


def _sort_key(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0
