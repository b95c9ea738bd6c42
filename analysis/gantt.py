"""The Gantt chart of the paths: when each resource was busy, below the link's replayed rate.

A lane's height at a slot (a few pixels wide) is the share of it in which the resource worked, so a hundred
thousand spans draw as fast as ten, and a lane that works half the time looks half full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.metrics import finish_s, token_times_s
from kvferry.analysis.occupancy import busy_share, delivered, shares, union
from kvferry.analysis.steps import between, carried_out_s, prefill_end_s, tokens_drawn, with_tokens
from kvferry.analysis.style import BLACK, BLUE, FAINT, GREY, INK, KINDS, ORANGE, kind_of
from kvferry.analysis.timeline import resources_of
from kvferry.analysis.warmth_picture import draw_warmth
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.specs import human

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Slots along the time axis: of a rate, about a pixel each; of a lane, wide enough to average single spans.
RATE_SLOTS = 1400
LANE_SLOTS = 280
# Above this number, each request is one line without a label.
_LABELLED_REQUESTS = 24
_LANE = 0.8
_BESIDE = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "handlelength": 1.4, "borderaxespad": 0.3}


def gantt(run: Run, *, title: str = "", request: int | None = None) -> Figure:
    """The whole run, or one request of it from arrival to its last token, as a figure of panels on one time axis.

    Link rate with the delivered area; for a single request, how its context fills up from both paths; a lane per
    resource; temperature and clock where heat is modelled; for several requests, what each waited for. Where all
    sequences are prefilled before any decodes, the two have lanes and a time axis each. Raises ValueError when nothing
    was recorded to draw.
    """
    apart_s = None if request is not None else prefill_end_s(run)
    if apart_s is not None and run.spans:
        return _decode_gantt(run, with_tokens(title, run), apart_s)
    run = run if request is None else view_of(run, request)
    start_s, end_s = window_of(run)
    resources = resources_of(run.spans)
    single = run.requests[0] if len(run.requests) == 1 else None
    filling = single is not None and single.units_computed + single.units_streamed > 0
    panels: list[tuple[str, float]] = []
    if run.link_times_s:
        panels.append(("rate", 1.5))
    if filling:
        panels.append(("context", 1.3))
    if resources:
        panels.append(("lanes", 0.2 + 0.38 * len(resources)))
    if run.warmth is not None:
        panels.append(("heat", 1.2))
    if len(run.requests) > 1:
        panels.append(("requests", 0.3 + min(0.16 * len(run.requests), 3.5)))

    figure = style.new_figure(10, 1.1 + sum(height for _, height in panels))
    if title:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=[height for _, height in panels])
    by_name = {name: axis for (name, _), axis in zip(panels, axes[:, 0], strict=True)}
    if "rate" in by_name:
        draw_rate(by_name["rate"], run, start_s, end_s)
    if filling and single is not None:
        draw_context(by_name["context"], run.spans, single, start_s, end_s)
    if "lanes" in by_name:
        draw_lanes(by_name["lanes"], run.spans, resources, start_s, end_s)
        by_name["lanes"].set_title("Paths")
    if run.warmth is not None:
        draw_warmth(by_name["heat"], run.warmth)
    if "requests" in by_name:
        draw_requests(by_name["requests"], run.requests, loads=run.decoded is None)
    for axis in by_name.values():
        axis.set_xlim(start_s, end_s)
        for token in run.requests if len(run.requests) == 1 else ():
            mark_first_token(axis, token, labelled=axis is axes[0, 0])
    axes[-1, 0].set_xlabel("time (s)" if request is None else f"time since request {request} arrived (s)")
    legend(figure, run.spans)
    return figure


def _decode_gantt(run: Run, title: str, prefilled_s: float) -> Figure:
    """Lanes of prefill on the left, of decoding on the right: the one may take a hundred times as long as the other."""
    start_s, _ = window_of(run)
    end_s = max(times[-1] for times in (carried_out_s(run), *map(token_times_s, run.requests)) if times)
    parts = [between(run, start_s, prefilled_s), between(run, prefilled_s, end_s)]
    resources = resources_of(run.spans)
    several = len({r.token_times_s for r in run.requests}) > 1
    warms = run.warmth is not None
    heights = [0.2 + 0.38 * len(resources)] + [1.2] * warms + [0.3 + min(0.16 * len(run.requests), 3.5)] * several
    figure = style.new_figure(10, 1.4 + sum(heights))
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    axes = figure.subplots(len(heights), 2, sharex="col", squeeze=False, height_ratios=heights, width_ratios=(1, 1.6))
    tokens = tokens_drawn(run)
    names = f"Prefill: {human.seconds(prefilled_s - start_s)}", f"Decoding {tokens - 1:,} tokens more:"
    for n, (part, name) in enumerate(zip(parts, names, strict=True)):
        own = [span for span in part.spans if span.end_s > span.start_s]
        if own:
            draw_lanes(axes[0, n], own, resources, 0.0, part.duration_s)
        if part.warmth is not None:
            draw_warmth(axes[1, n], part.warmth, named=bool(n))
        axes[0, n].set_xlim(0.0, part.duration_s)
        axes[0, n].set_title(f"{name} {human.seconds(part.duration_s)}" if n else name)
        axes[-1, n].set_xlabel("time since the first token (s)" if n else "time (s)")
        if n:
            axes[0, n].set_yticklabels([])
    if several:
        for n, zero_s in enumerate((start_s, prefilled_s)):
            moved = [_moved(record, zero_s, parts[n].duration_s) for record in run.requests]
            draw_requests(axes[-1, n], moved, loads=False)
            if not n:
                axes[-1, n].get_legend().remove()
    elif len(run.requests) > 1:
        axes[0, 0].annotate(
            f"all {len(run.requests)} sequences alike", (0, 0), xycoords="figure fraction", xytext=(6, 6),
            textcoords="offset points", size=8, color=GREY,
        )  # fmt: skip
    legend(figure, run.spans)
    return figure


def _moved(record: RequestRecord, zero_s: float, length_s: float) -> RequestRecord:
    """The record on a clock that begins at `zero_s`; what came before it came then."""

    def at(time_s: float) -> float:
        return min(max(time_s - zero_s, 0.0), length_s)

    first_s = record.first_token_s
    return replace(
        record,
        arrival_s=at(record.arrival_s),
        loaded_s=None,
        first_token_s=None if first_s is None else at(first_s),
        token_times_s=tuple(map(at, record.token_times_s)),
    )


def view_of(run: Run, request: int) -> Run:
    """The part of a run that belongs to one request: from its arrival (time 0) to its last token, its own record only.

    All spans and link rates of that time stay, those of other requests too. Raises ValueError for an unknown request.
    """
    record = next((r for r in run.requests if r.request == request), None)
    if record is None:
        raise ValueError(f"the run has no request {request}")
    zero_s = record.arrival_s
    end_s = finish_s(record)
    end_s = run.duration_s if end_s is None else end_s

    def moved(time_s: float | None) -> float | None:
        return None if time_s is None else time_s - zero_s

    spans = tuple(
        span._replace(start_s=max(span.start_s, zero_s) - zero_s, end_s=min(span.end_s, end_s) - zero_s)
        for span in run.spans
        if span.end_s > zero_s and span.start_s < end_s
    )
    return replace(
        run,
        requests=(
            replace(
                record,
                arrival_s=0.0,
                loaded_s=moved(record.loaded_s),
                first_token_s=moved(record.first_token_s),
                token_times_s=tuple(time_s - zero_s for time_s in record.token_times_s),
            ),
        ),
        spans=spans,
        duration_s=end_s - zero_s,
        warmth=None if run.warmth is None else run.warmth.between(zero_s, end_s),
        link_times_s=tuple(time_s - zero_s for time_s in run.link_times_s),
    )


def window_of(run: Run) -> tuple[float, float]:
    """The time that a picture shows: from the first arrival to the end of the last work, with a margin. Raises
    ValueError for a run without work."""
    ends_s = [span.end_s for span in run.spans] + [e for e in map(finish_s, run.requests) if e is not None]
    starts_s = [r.arrival_s for r in run.requests] or [span.start_s for span in run.spans]
    if not ends_s or max(ends_s) <= min(starts_s):
        raise ValueError("nothing to draw: the run has no spans")
    return min(starts_s), max(ends_s) + 0.02 * (max(ends_s) - min(starts_s))


def draw_rate(axis: Any, run: Run, start_s: float, end_s: float, *, moved_too: bool = True) -> None:
    """The replayed rate as a line, what was delivered as the area under it, in Mbit/s, averaged per pixel."""
    # Drawn only for the time that the run replayed: outside it, the rate is unknown, not 0.
    edges_s = np.linspace(max(start_s, run.link_times_s[0]), min(end_s, run.link_times_s[-1]), RATE_SLOTS + 1)
    offered = _mean_rate(np.asarray(run.link_times_s), np.asarray(run.link_bytes_per_s), edges_s)
    top = float(offered.max())
    if moved_too:
        link = [span for span in run.spans if span.resource == "link"]
        moved = _mean_rate(*delivered(link, run.link_times_s, run.link_bytes_per_s), edges_s)
        top = max(top, float(moved.max()))
        _stairs(axis, moved, edges_s, fill=True, color=BLUE, alpha=0.45, linewidth=0, label="delivered")
    _stairs(axis, offered, edges_s, baseline=None, color=INK, linewidth=1.0, label="link rate")
    axis.set_ylim(0, 1.12 * top or 1.0)
    axis.set_ylabel("Mbit/s")
    axis.grid(axis="y")
    axis.legend(**_BESIDE)
    axis.set_title("Link")


def draw_context(axis: Any, spans: Sequence[Span], request: RequestRecord, start_s: float, end_s: float) -> None:
    """How the context's KV fills up: computed units from below, streamed units from above, done when they meet.

    Each path's units are spread over its own work (processor time; the last stage that streamed KV passes
    through): spans do not name units.
    """
    edges_s = np.linspace(start_s, end_s, LANE_SLOTS + 1)
    ours = [span for span in spans if span.request in (None, request.request)]
    units = request.units_computed + request.units_streamed
    computed = [span for span in ours if kind_of(span) == "computed"]
    stages = ([span for span in ours if span.resource == stage] for stage in ("copy", "decompress", "link"))
    streamed = next((stage for stage in stages if any(span.end_s > span.start_s for span in stage)), [])
    below = 100 * request.units_computed / units * _progress(computed, edges_s)
    above = 100 * request.units_streamed / units * _progress(streamed, edges_s)
    axis.fill_between(edges_s, 0, below, color=ORANGE, linewidth=0)
    kind = KINDS["streamed"]
    axis.fill_between(edges_s, 100 - above, 100, facecolor=BLUE, hatch=kind.hatch, edgecolor="white", linewidth=0)
    for share, middle, word in (
        (request.units_streamed, 100 - above[-1] / 2, "streamed"),
        (request.units_computed, below[-1] / 2, "computed"),
    ):
        if share:
            _beside(axis, middle, f"{100 * share / units:.0f} % {word}")
    axis.set_ylim(0, 100)
    axis.set_yticks([0, 50, 100])
    axis.set_ylabel("% of units")
    axis.set_title("Context KV: computed from below, streamed from above")


def draw_lanes(axis: Any, spans: Sequence[Span], resources: Sequence[str], start_s: float, end_s: float) -> None:
    """A lane per resource from the top, its busy share (until the last span's end) beside it."""
    last_s = max(span.end_s for span in spans)
    for lane, resource in enumerate(reversed(resources)):
        axis.axhline(lane, color=FAINT, linewidth=0.8, zorder=0)
        own = [span for span in spans if span.resource == resource]
        busy = {name: union(part) for name in KINDS if (part := [span for span in own if kind_of(span) == name])}
        edges_s = _lane_edges(own, start_s, end_s)
        base = np.full(len(edges_s) - 1, float(lane))
        for name, intervals in busy.items():
            kind = KINDS[name]
            top = np.minimum(base + _LANE * shares(intervals, edges_s), lane + _LANE)
            _stairs(
                axis, top, edges_s, baseline=base, fill=True, facecolor=kind.colour, hatch=kind.hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            base = top
        _beside(axis, lane + _LANE / 2, f"busy {100 * (busy_share(own, start_s, last_s) or 0.0):.0f} %")
    axis.set_yticks([lane + _LANE / 2 for lane in range(len(resources))], list(reversed(resources)))
    axis.set_ylim(-0.1, len(resources) - 1 + _LANE + 0.15)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)


def draw_requests(axis: Any, requests: Sequence[RequestRecord], *, loads: bool = True) -> None:
    """What each request waited for: its load, its first token, the rest of its answer. Without `loads` there is no
    context to load, and all before the first token is prefill."""
    phases: dict[str, list[tuple[int, float, float]]] = {"streamed": [], "prefill": [], "decode": []}
    for row, request in enumerate(requests):
        at_s = request.arrival_s
        times = token_times_s(request)
        loaded_s = request.loaded_s if loads else None
        for name, end_s in zip(phases, (loaded_s, request.first_token_s, times[-1] if times else None)):
            if end_s is not None and end_s > at_s:
                phases[name].append((row, at_s, end_s))
                at_s = end_s
    for (name, bars), (label, colour) in zip(
        phases.items(),
        (
            ("load", GREY),
            ("prefill" if loads else "waiting and prefill", KINDS["prefill"].colour),
            ("answer", KINDS["decode"].colour),
        ),
    ):
        if bars:
            row, start_s, end_s = np.array(bars).T
            axis.barh(
                row, end_s - start_s, left=start_s, height=0.75, color=colour, label=label, linewidth=0,
                hatch=None if label == "load" else KINDS[name].hatch, edgecolor="white",
            )  # fmt: skip
    first = [(r.first_token_s, row) for row, r in enumerate(requests) if r.first_token_s is not None]
    if first:
        axis.plot(*zip(*first), linestyle="none", marker="*", markersize=6, color=BLACK, label="first token")
    axis.set_ylim(len(requests) - 0.4, -0.6)
    if len(requests) <= _LABELLED_REQUESTS:
        axis.set_yticks(range(len(requests)), [str(r.request) for r in requests], size=7)
    axis.set_ylabel("request")
    axis.set_title("Requests: what each waited for")
    axis.legend(**_BESIDE)


def mark_first_token(axis: Any, request: RequestRecord, *, labelled: bool) -> None:
    """A dashed line at the first token, with the TTFT beside its head."""
    if request.first_token_s is None:
        return
    axis.axvline(request.first_token_s, color=BLACK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=5)
    if labelled:
        text = f"first token after {human.seconds(request.first_token_s - request.arrival_s)}"
        # Left of the line, where the panel's title leaves room for it; else at the panel's right end.
        begin_s, end_s = axis.get_xlim()
        early = request.first_token_s - begin_s < 0.4 * (end_s - begin_s)
        axis.annotate(
            text, (1.0 if early else request.first_token_s, 1.0),
            xycoords=("axes fraction" if early else "data", "axes fraction"), xytext=(-4, 3),
            textcoords="offset points", ha="right", weight="bold", size=9,
        )  # fmt: skip
        axis.plot(
            [request.first_token_s], [1.0], transform=axis.get_xaxis_transform(), marker="*", markersize=10,
            color=BLACK, clip_on=False, zorder=6,
        )  # fmt: skip


def legend(figure: Any, spans: Sequence[Span]) -> None:
    """The kinds of work that occur, below everything."""
    from matplotlib.patches import Patch

    found = {kind_of(span) for span in spans}
    handles = [
        Patch(facecolor=kind.colour, hatch=kind.hatch, edgecolor="white", linewidth=0, label=kind.label)
        for name, kind in KINDS.items()
        if name in found
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2.4, handleheight=1)


def _lane_edges(spans: Sequence[Span], start_s: float, end_s: float) -> np.ndarray:
    """The slots of a lane: even, but cut at both ends of long stretches of one kind of work, which so stay sharp."""
    slot_s = (end_s - start_s) / LANE_SLOTS
    cuts = [np.array([start_s, end_s])]
    for name in KINDS:
        begin, end = union((span for span in spans if kind_of(span) == name), gap_s=slot_s / 20)
        long = end - begin > 2 * slot_s
        cuts += [begin[long], end[long]]
    sharp = np.unique(np.clip(np.concatenate(cuts), start_s, end_s))
    even = np.linspace(start_s, end_s, LANE_SLOTS + 1)
    after = np.searchsorted(sharp, even)
    to_cut = np.minimum(
        np.abs(even - sharp[np.maximum(after - 1, 0)]), np.abs(even - sharp[np.minimum(after, len(sharp) - 1)])
    )
    # A very narrow slot beside a cut would show a single span at full height.
    return np.unique(np.concatenate((sharp, even[to_cut > slot_s / 2])))


def _stairs(axis: Any, values: np.ndarray, edges_s: np.ndarray, *, baseline: Any = 0, **how: Any) -> None:
    """Axes.stairs without steps of height 0: most of a lane is flat, and an SVG writes every point."""
    floor = np.broadcast_to(0.0 if baseline is None else baseline, values.shape)
    keep = np.concatenate(([True], (np.abs(np.diff(values)) > 1e-9) | (np.abs(np.diff(floor)) > 1e-9)))
    edges_s = np.concatenate((edges_s[:-1][keep], edges_s[-1:]))
    axis.stairs(values[keep], edges_s, baseline=None if baseline is None else floor[keep], **how)


def _beside(axis: Any, height: float, text: str) -> None:
    axis.annotate(text, (1.005, height), xycoords=("axes fraction", "data"), va="center", size=8, color=GREY)


def _mean_rate(times_s: np.ndarray, bytes_per_s: np.ndarray, edges_s: np.ndarray) -> np.ndarray:
    """Mbit/s per slot of a piecewise constant rate: its exact mean; 0 outside the rate's own edges."""
    if not len(bytes_per_s):
        return np.zeros(len(edges_s) - 1)
    moved = np.concatenate(([0.0], np.cumsum(bytes_per_s * np.diff(times_s))))
    return np.diff(np.interp(edges_s, times_s, moved)) / np.diff(edges_s) * 8e-6


def _progress(spans: Sequence[Span], edges_s: np.ndarray) -> np.ndarray:
    """The share, 0 to 1, of the spans' work done at each edge; a link's work is its bytes, others' their time."""
    spans = [span for span in spans if span.end_s > span.start_s]
    if not spans:
        return np.zeros(len(edges_s))
    times = np.array([(span.start_s, span.end_s) for span in spans])
    lasting = times[:, 1] - times[:, 0]
    weights = np.array([span.n_bytes for span in spans]) if spans[0].resource == "link" else lasting
    # A span's ramp is the difference of two hinges; the sum of all sorted hinges is one interpolation.
    at, turn = times.T.ravel(), np.concatenate((weights / lasting, -weights / lasting))
    order = np.argsort(at, kind="stable")
    slope = np.cumsum(turn[order])
    value = np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(at[order]))))
    return np.clip(np.interp(edges_s, at[order], value) / max(float(weights.sum()), 1e-300), 0.0, 1.0)
