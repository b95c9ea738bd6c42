"""Draws the two figures of docs/architecture.md: a decoding step by queue, as a run had it, and who decides what.

usage: python studies/architecture.py [FOLDER]
"""

import sys
from dataclasses import fields
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

import kvferry
from kvferry.pipelines.decoding.systems import ROLES
from kvferry.policies.decode.roles import Roles

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
SCENARIO = "kvswap/throughput"
CHANGES = {"workload.decoded": 4, "workload.batch": 4, "workload.context": "8Ki"}
# How many layers of a step are drawn; the others look the same.
LAYERS = 3
QUEUES = ("storage", "gpu")
# Told apart without colour, by shade and hatching.
LOOKS: dict[str, tuple[str, str]] = {
    "Select": ("white", "////"),
    "Bookkeep": ("0.55", ""),
    "DecodeAttention": ("white", "...."),
    "FeedForward": ("0.85", ""),
    "Read": ("white", "\\\\"),
}
DECIDES = {
    "selector": "which KV blocks attention wants, and when",
    "residency": "what stays in memory, in which slots",
    "layout": "what a block is, where it lies in the file",
    "upkeep": "what a new token does to blocks",
    "placement": "each layer's tier, and when it moves",
    "batching": "which requests decode together",
    "attention": "what a kernel copies and reads",
}


def draw_step(picture: Path) -> None:
    """Writes one step's first layers, queue over queue."""
    spans = kvferry.run(SCENARIO, CHANGES).spans
    step = spans[spans.step == spans.step.max()]
    end = step[(step.label == "FeedForward") & (step.layer == LAYERS - 1)].end_s.max()
    step = step[step.start_s < end]
    begin = step.start_s.min()
    figure, axes = plt.subplots(figsize=(9, 2.4), layout="constrained")
    reads = 0
    for span in step.itertuples():
        shade, hatch = LOOKS[span.label]
        left, width = 1e3 * (span.start_s - begin), 1e3 * (min(span.end_s, end) - span.start_s)
        axes.barh(QUEUES.index(span.resource), width, left=left, color=shade, hatch=hatch, edgecolor="black", lw=0.7)
        if span.label == "FeedForward":
            axes.text(left + width / 2, 1, f"layer {span.layer}", ha="center", va="center")
        if span.label == "Read":
            # KVSwap reads a layer ahead, in the order of the layers.
            shown = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            axes.text(left + width / 2, 0, f"layer {reads}", ha="center", va="center", bbox=shown, fontsize=8)
            reads += 1
    for label, (shade, hatch) in LOOKS.items():
        axes.barh(0, 0, color=shade, hatch=hatch, edgecolor="black", label=label)
    axes.set_yticks(range(len(QUEUES)), QUEUES)
    axes.set_xlabel("ms since the step began")
    figure.legend(ncols=len(LOOKS), loc="outside upper center", frameon=False)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_roles(picture: Path) -> None:
    """Writes the roles of a decoding system, what carries out their decisions, and in which worlds."""
    roles = [field.name for field in fields(Roles)]
    figure, axes = plt.subplots(figsize=(10, 4.3), layout="constrained")
    axes.set(xlim=(0, 100), ylim=(0, 10 * len(roles)))
    axes.axis("off")
    for row, role in enumerate(reversed(roles)):
        names = ", ".join(list(ROLES[role])[:2]) + (", ..." if len(ROLES[role]) > 2 else "")
        _box(axes, 0, 10 * row + 1, 46, 8, f"{role}: {DECIDES[role]}\n{names}", bold=False)
        _arrow(axes, (46, 10 * row + 5), (52, 35))
    _box(axes, 52, 22, 15, 26, "pipeline\n\na list of stages\nper step,\nno branch on\nthe system")
    _arrow(axes, (67, 35), (72, 35))
    _box(axes, 72, 22, 11, 26, "Machine\n\nprotocol:\nsubmit, fetch,\nmove, observe")
    for height, name in ((54, "sim\nmodelled time"), (28, "live\nwall time, torch"), (2, "fake\nfor tests")):
        _box(axes, 88, height, 12, 14, name)
        _arrow(axes, (83, 35), (88, height + 7))
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def _box(axes: Axes, left: float, bottom: float, width: float, height: float, text: str, bold: bool = True) -> None:
    axes.add_patch(FancyBboxPatch((left, bottom), width, height, boxstyle="round,pad=0", fc="white", ec="black"))
    axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=9 if bold else 8.5)


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "lw": 0.8})


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    draw_step(folder / "architecture-step.png")
    draw_roles(folder / "architecture-roles.png")
