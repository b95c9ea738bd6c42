"""Decoding with KV on storage: reads beside what is computed, by layer and over time, and how much is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import human, style
from kvferry.analysis.decode_time import WAITING, draw_depth, draw_reuse, draw_waits, storage_depth, waits_s
from kvferry.analysis.occupancy import shares, union
from kvferry.analysis.steps import Steps, steps_of
from kvferry.analysis.style import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Layers in the upper panel, and steps whose mean the lower one shows.
LAYERS_SHOWN = 5
STEPS_SHOWN = 3
_LANE = 0.78
# What an op is for, by its label; each also differs by hatch and lightness.
_OTHER = "rest"
_FOR = {
    "DecodeAttention": "attention",
    "Reconstruct": "attention",
    "ProjectQkv": "feed-forward and projections",
    "FeedForward": "feed-forward and projections",
    "RestOfLayer": "feed-forward and projections",
    "Select": "choosing KV",
    "Retrieve": "choosing KV",
    "Assign": "updating clusters",
    "Cluster": "updating clusters",
    "Split": "updating clusters",
    "Bookkeep": "choosing KV",
    "Read": "reading KV",
    "Write": "writing KV",
}
_LOOKS: dict[str, tuple[str, str | None]] = {
    "choosing KV": (VERMILION, "xxxx"),
    "updating clusters": (PURPLE, "++++"),
    "attention": (GREEN, "\\\\\\\\"),
    "feed-forward and projections": (ORANGE, None),
    "reading KV": (BLUE, "////"),
    "writing KV": (SKY, "...."),
    _OTHER: ("#999999", "||||"),
}


def decode_picture(run: Run, *, title: str = "") -> Figure:
    """From above: some layers of one decode step, each op on the processor and each read on storage. By layer, how long
    storage read and the processor computed while the layer ran, mean over a few steps; a system that chooses KV ahead
    reads the next layer's meanwhile. By step, what the token waited for. By step, the share of selected KV blocks that
    were there already, of a system that keeps some, and how many batches storage had under way.

    Raises ValueError where no step was decoded in lock step with its spans kept.
    """
    steps = steps_of(run)
    decoded = run.decoded
    if steps is None or decoded is None:
        raise ValueError("nothing to draw: no decode step with the spans of all its layers")
    first = max(0, (len(steps.starts_s) - STEPS_SHOWN) // 2)
    shown = range(first, min(first + STEPS_SHOWN, len(steps.starts_s)))
    edges_s = np.array(decoded.token_times_s[: len(steps.starts_s) + 1])
    stored = any(span.resource == "storage" for span in run.spans)
    reuses = decoded.reuses and any(wanted for wanted, _ in decoded.step_blocks)
    last = [name for name, there in (("reuse", reuses), ("queue", stored)) if there]
    rows = [["layers"], ["by layer"], ["by step"], last]
    figure = style.new_figure(10, 9.2 if last else 7.4)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    panels: Any = figure.subplot_mosaic(
        [row * (2 // len(row)) for row in rows if row], height_ratios=[1.0, 1.1, 1.1, 0.8][: len(rows) if last else 3]
    )
    _draw_layers(panels["layers"], run.spans, steps, shown[0])
    _draw_means(panels["by layer"], run.spans, steps, shown)
    draw_waits(panels["by step"], waits_s(run.spans, steps, edges_s, _FOR), {**_LOOKS, **WAITING})
    if reuses:
        draw_reuse(panels["reuse"], decoded.step_blocks)
    if stored:
        draw_depth(panels["queue"], storage_depth(run.spans, edges_s))
    return figure


def _draw_layers(axis: Any, spans: Sequence[Span], steps: Steps, step: int) -> None:
    from matplotlib.patches import Patch

    ends_s = (steps.starts_s[step], *steps.ends_s[step])
    begin = max(0, (len(ends_s) - 1 - LAYERS_SHOWN) // 2)
    last = min(begin + LAYERS_SHOWN, len(ends_s) - 1)
    zero_s, end_s = ends_s[begin], ends_s[last]
    lanes = {"storage": 0, steps.processor: 1}
    used = set()
    for span in spans:
        if span.resource not in lanes or span.end_s <= zero_s or span.start_s >= end_s:
            continue
        kind = _FOR.get(span.label, _OTHER)
        used.add(kind)
        colour, hatch = _LOOKS[kind]
        start, stop = max(span.start_s, zero_s) - zero_s, min(span.end_s, end_s) - zero_s
        axis.barh(
            lanes[span.resource], 1e3 * (stop - start), left=1e3 * start, height=_LANE, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
    for layer in range(begin, last):
        left, right = 1e3 * (ends_s[layer] - zero_s), 1e3 * (ends_s[layer + 1] - zero_s)
        if layer % 2:
            axis.axvspan(left, right, color=FAINT, alpha=0.5, zorder=0, linewidth=0)
        axis.annotate(f"layer {layer}", ((left + right) / 2, 1.62), ha="center", size=8.5, color=INK)
    axis.set_yticks([0, 1], ["storage", steps.processor])
    axis.set_ylim(-0.55, 1.9)
    axis.set_xlim(0, 1e3 * (end_s - zero_s))
    axis.set_xlabel("time (ms)")
    axis.set_title(f"Layers {begin} to {last - 1} of decode step {step + 1}")
    axis.tick_params(axis="y", length=0)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0, label=kind)
        for kind, (colour, hatch) in _LOOKS.items()
        if kind in used
    ]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.2, handleheight=1)


def _draw_means(axis: Any, spans: Sequence[Span], steps: Steps, shown: Sequence[int]) -> None:
    lasting, computing, reading = (np.mean(rows, axis=0) for rows in zip(*(_by_layer(spans, steps, n) for n in shown)))
    layers = np.arange(len(lasting))
    for n, (seconds, label, colour, hatch) in enumerate(
        ((computing, "processor busy", ORANGE, None), (reading, "storage reads", BLUE, "////"))
    ):
        axis.bar(
            layers + 0.4 * (n - 0.5), 1e3 * seconds, width=0.4, color=colour, hatch=hatch, edgecolor="white",
            linewidth=0, label=label,
        )  # fmt: skip
    axis.step(
        np.concatenate((layers - 0.5, layers[-1:] + 0.5)), 1e3 * np.concatenate((lasting, lasting[-1:])), where="post",
        color=INK, linewidth=1.2, label="the layer takes",
    )  # fmt: skip
    mean_s, read_s, work_s = (float(seconds.mean()) for seconds in (lasting, reading, computing))
    words = f"{human.seconds(mean_s)} each, storage reads {human.seconds(read_s)}"
    words += f", the processor works {human.seconds(work_s)}"
    if read_s:
        words += f"; {human.percent(max(0.0, 1 - max(0.0, mean_s - work_s) / read_s))} of reading is hidden"
    axis.set_title(f"By layer, mean of {len(shown)} steps: {words}", size=9)
    axis.set_xlim(-0.6, len(layers) - 0.4)
    axis.set_xlabel("layer")
    axis.set_ylabel("ms per layer")
    axis.grid(axis="y")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.spines["bottom"].set_color(GREY)


def _by_layer(spans: Sequence[Span], steps: Steps, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds that each layer of a step takes, and those in which the processor and reads were busy meanwhile."""
    edges_s = np.array((steps.starts_s[step], *steps.ends_s[step]))
    lasting = np.diff(edges_s)
    inside = [span for span in spans if span.end_s > edges_s[0] and span.start_s < edges_s[-1]]
    computing = union(span for span in inside if span.resource == steps.processor)
    reading = union(span for span in inside if span.resource == "storage" and span.label == "Read")
    return lasting, shares(computing, edges_s) * lasting, shares(reading, edges_s) * lasting
