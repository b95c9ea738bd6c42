"""Decoding with KV on storage: reads beside what is computed, by layer and over time, and how much is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.decode_time import WAITING, draw_depth, draw_reuse, draw_waits, storage_depth, waits_s
from kvferry.analysis.occupancy import shares, union
from kvferry.analysis.steps import Steps, carried_out_s, steps_of, with_tokens
from kvferry.analysis.style import BLACK, BLUE, DARK, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from kvferry.machine.ops import OPS
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run
from kvferry.specs import human

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Layers in the upper panel, and steps whose mean the lower one shows.
LAYERS_SHOWN = 5
STEPS_SHOWN = 3
_LANE = 0.78
# Colours of ops that are drawn under their own names.
_OWN = (YELLOW, BLACK, SKY, VERMILION)
# Resources that bring KV to the processor: the label, colour and hatching of each.
MOVERS: dict[str, tuple[str, tuple[str, str | None]]] = {
    "storage": ("storage reads", (BLUE, "////")),
    "copy": ("copies", (DARK, "----")),
}
_COPY, _OTHER = "copying KV", "rest"
_LOOKS: dict[str, tuple[str, str | None]] = {
    "choosing KV": (VERMILION, "xxxx"),
    "updating clusters": (PURPLE, "++++"),
    "attention": (GREEN, "\\\\\\\\"),
    "feed-forward and projections": (ORANGE, None),
    "reading KV": (BLUE, "////"),
    "writing KV": (SKY, "...."),
    _COPY: (DARK, "----"),
    _OTHER: ("#999999", "||||"),
}


def _purpose(span: Span) -> str:
    """Returns what a span is drawn as: the purpose that its op declares, its name where it declares none, or what the
    resource that moves KV does."""
    if span.resource == "copy":
        return _COPY
    if span.resource == "storage":
        return "writing KV" if span.label == "Write" else "reading KV"
    op = OPS.get(span.label)
    if op is not None and op.purpose is None:
        return span.label
    return op.purpose if op is not None and op.purpose in _LOOKS else _OTHER


def _looks() -> dict[str, tuple[str, str | None]]:
    """Returns the colour and hatching of everything that can be drawn: of purposes, and of ops that declare none."""
    own = (label for label, op in OPS.items() if op.purpose is None)
    return {**_LOOKS, **{label: (_OWN[n % len(_OWN)], "....") for n, label in enumerate(own)}}


def decode_picture(run: Run, *, title: str = "") -> Figure:
    """From above: some layers of one decode step, each op on the processor, each read on storage and each copy between
    memories. By layer, how long these took and the processor computed while the layer ran, mean over a few steps; a
    system that chooses KV ahead reads the next layer's meanwhile. By step, what the token waited for. By step, the
    share of selected KV blocks that were there already, of a system that keeps some, and how many batches storage had
    under way.

    Raises ValueError where no step was decoded in lock step with its spans kept.
    """
    steps = steps_of(run)
    decoded = run.decoded
    if steps is None or decoded is None:
        raise ValueError("nothing to draw: no decode step with the spans of all its layers")
    edges_s = np.array(carried_out_s(run)[: len(steps.starts_s) + 1])
    moving = [name for name in MOVERS if any(span.resource == name for span in run.spans)]
    shown = _shown(run.spans, steps, edges_s)
    stored = "storage" in moving
    reuses = decoded.reuses and any(wanted for wanted, _ in decoded.step_blocks)
    last = [name for name, there in (("reuse", reuses), ("queue", stored)) if there]
    rows = [["layers"], ["by layer"], ["by step"], last]
    figure = style.new_figure(10, 9.2 if last else 7.4)
    figure.suptitle(with_tokens(title, run), x=0.01, ha="left", weight="bold", size=12)
    panels: Any = figure.subplot_mosaic(
        [row * (2 // len(row)) for row in rows if row], height_ratios=[1.0, 1.1, 1.1, 0.8][: len(rows) if last else 3]
    )
    _draw_layers(panels["layers"], run.spans, steps, shown[0], moving)
    _draw_means(panels["by layer"], run.spans, steps, shown, moving)
    draw_waits(panels["by step"], waits_s(run.spans, steps, edges_s, _purpose), {**_looks(), **WAITING})
    if reuses:
        draw_reuse(panels["reuse"], decoded.step_blocks)
    if stored:
        draw_depth(panels["queue"], storage_depth(run.spans, edges_s))
    return figure


def _shown(spans: Sequence[Span], steps: Steps, edges_s: np.ndarray) -> range:
    """The steps whose layers are drawn: from the middle on, or where KV moves, from the middle of those steps on in
    which it does."""
    moves = [span for span in spans if span.resource in MOVERS and span.label != "Write"]
    busy = shares(union(moves), edges_s)
    those = np.flatnonzero(busy > 0)[: len(steps.starts_s)]
    middle = (len(steps.starts_s) - STEPS_SHOWN) // 2 if not len(those) else int(those[len(those) // 2])
    first = max(0, min(middle, len(steps.starts_s) - STEPS_SHOWN))
    return range(first, min(first + STEPS_SHOWN, len(steps.starts_s)))


def _first_layer(spans: Sequence[Span], ends_s: Sequence[float]) -> int:
    """The layers in the middle are drawn, or, where KV moves during others alone, those from where most of it does."""
    moving = shares(
        union(span for span in spans if span.resource in MOVERS and span.label != "Write"), np.array(ends_s)
    )
    last = max(0, len(ends_s) - 1 - LAYERS_SHOWN)
    middle = last // 2
    if moving[middle : middle + LAYERS_SHOWN].any() or not moving.any():
        return middle
    return min(int(moving.argmax()), last)


def _draw_layers(axis: Any, spans: Sequence[Span], steps: Steps, step: int, moving: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    ends_s = (steps.starts_s[step], *steps.ends_s[step])
    begin = _first_layer(spans, ends_s)
    last = min(begin + LAYERS_SHOWN, len(ends_s) - 1)
    zero_s, end_s = ends_s[begin], ends_s[last]
    lanes = {name: lane for lane, name in enumerate((*moving, steps.processor))}
    looks, used = _looks(), set()
    for span in spans:
        if span.resource not in lanes or span.end_s <= zero_s or span.start_s >= end_s:
            continue
        kind = _purpose(span)
        used.add(kind)
        colour, hatch = looks[kind]
        start, stop = max(span.start_s, zero_s) - zero_s, min(span.end_s, end_s) - zero_s
        axis.barh(
            lanes[span.resource], 1e3 * (stop - start), left=1e3 * start, height=_LANE, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
    for layer in range(begin, last):
        left, right = 1e3 * (ends_s[layer] - zero_s), 1e3 * (ends_s[layer + 1] - zero_s)
        if layer % 2:
            axis.axvspan(left, right, color=FAINT, alpha=0.5, zorder=0, linewidth=0)
        axis.annotate(f"layer {layer}", ((left + right) / 2, len(lanes) - 0.38), ha="center", size=8.5, color=INK)
    axis.set_yticks(list(lanes.values()), list(lanes))
    axis.set_ylim(-0.55, len(lanes) - 0.1)
    axis.set_xlim(0, 1e3 * (end_s - zero_s))
    axis.set_xlabel("time (ms)")
    axis.set_title(f"Layers {begin} to {last - 1} of decode step {step + 1}")
    axis.tick_params(axis="y", length=0)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0, label=kind)
        for kind, (colour, hatch) in looks.items()
        if kind in used
    ]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.2, handleheight=1)


def _draw_means(axis: Any, spans: Sequence[Span], steps: Steps, shown: Sequence[int], moving: Sequence[str]) -> None:
    means = [np.mean(rows, axis=0) for rows in zip(*(_by_layer(spans, steps, n, moving) for n in shown))]
    lasting, computing, *moves = means
    layers = np.arange(len(lasting))
    bars: list[tuple[Any, str, str, str | None]] = [(computing, "processor busy", ORANGE, None)]
    bars += [(seconds, MOVERS[name][0], *MOVERS[name][1]) for name, seconds in zip(moving, moves, strict=True)]
    width = 0.8 / len(bars)
    for n, (seconds, label, colour, hatch) in enumerate(bars):
        axis.bar(
            layers + width * (n - (len(bars) - 1) / 2), 1e3 * seconds, width=width, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0, label=label,
        )  # fmt: skip
    axis.step(
        np.concatenate((layers - 0.5, layers[-1:] + 0.5)), 1e3 * np.concatenate((lasting, lasting[-1:])), where="post",
        color=INK, linewidth=1.2, label="the layer takes",
    )  # fmt: skip
    mean_s, work_s = float(lasting.mean()), float(computing.mean())
    words = f"{human.seconds(mean_s)} each, the processor works {human.seconds(work_s)}"
    for name, seconds in zip(moving, moves, strict=True):
        words += f", {MOVERS[name][0].replace('reads', 'reads for').replace('copies', 'copies take')}"
        words += f" {human.seconds(float(seconds.mean()))}"
    moved_s = sum(float(seconds.mean()) for seconds in moves)
    if moved_s:
        words += f"; {human.percent(max(0.0, 1 - max(0.0, mean_s - work_s) / moved_s))} of that is hidden"
    axis.set_title(f"By layer, mean of {len(shown)} steps: {words}", size=9)
    axis.set_xlim(-0.6, len(layers) - 0.4)
    axis.set_xlabel("layer")
    axis.set_ylabel("ms per layer")
    axis.grid(axis="y")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.spines["bottom"].set_color(GREY)


def _by_layer(spans: Sequence[Span], steps: Steps, step: int, moving: Sequence[str]) -> list[np.ndarray]:
    """Seconds that each layer of a step takes, and those in which the processor and what moves KV were busy
    meanwhile."""
    edges_s = np.array((steps.starts_s[step], *steps.ends_s[step]))
    lasting = np.diff(edges_s)
    inside = [span for span in spans if span.end_s > edges_s[0] and span.start_s < edges_s[-1]]
    busy = [[span for span in inside if span.resource == steps.processor]]
    busy += [[span for span in inside if span.resource == name and span.label != "Write"] for name in moving]
    return [lasting, *(shares(union(part), edges_s) * lasting for part in busy)]
