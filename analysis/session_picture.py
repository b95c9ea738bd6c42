"""A day of conversations on one device: where each turn's context came from, what it waited for, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.sessions import FROM, PATHS, brought, mostly_by
from kvferry.analysis.style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION
from kvferry.pipelines.record import Run, TurnRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By where tokens came from: label and colour.
_LOOKS = {
    "memory": ("in memory", GREEN),
    "flash": ("on flash", SKY),
    "cloud": ("in the cloud", BLUE),
    "computed": ("nowhere: computed", ORANGE),
}
# By the path: label and colour.
_WAYS = {"reading": ("read", SKY), "streaming": ("streamed", BLUE), "computing": ("computed", ORANGE)}
# Parts of a wait: label, colour, marker.
_PARTS = (("other turns", VERMILION, "s"), ("its context", BLUE, "^"), ("reading what is new", ORANGE, "o"))
_UNITS = ((86_400.0 * 2, 86_400.0, "days"), (7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "s"))


def session_picture(run: Run, *, title: str = "") -> Figure:
    """Above: the tokens of each turn's prompt by where their KV was, and what was not in memory by its path. Below:
    what the turn waited for before its first token, and what is kept. Raises ValueError for a run without a turn that
    has ended."""
    turns = sorted(run.sessions.turns, key=lambda turn: turn.began_s) if run.sessions is not None else []
    if not turns:
        raise ValueError("nothing to draw: no turn has ended")
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if run.duration_s >= least)
    figure = style.new_figure(10, 9.0)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    axes = figure.subplots(4, 1, sharex=True, height_ratios=[1.2, 1.0, 1.2, 0.9])
    begun = np.array([turn.began_s for turn in turns]) / scale
    # Turns come in bursts: bars of one width would hide each other, lines do not.
    width = max(0.6, min(2.0, 500 / len(turns)))
    _draw_contexts(axes[0], turns, begun, width)
    _draw_paths(axes[1], turns, begun, width)
    _draw_waits(axes[2], turns, begun)
    _draw_kept(axes[3], turns, np.array([turn.end_s for turn in turns]) / scale)
    axes[3].set_xlabel(f"{unit} since the beginning")
    axes[3].set_xlim(0, 1.01 * run.duration_s / scale)
    return figure


def _draw_contexts(axis: Any, turns: list[TurnRecord], begun: np.ndarray, width: float) -> None:
    prompts = sum(turn.prompt for turn in turns)
    parts = []
    for place, key in FROM.items():
        label, colour = _LOOKS[place]
        tokens = np.array([getattr(turn, key) for turn in turns], dtype=float)
        parts.append((f"{label} ({tokens.sum() / prompts:.0%})", colour, tokens))
    _draw_bars(axis, begun, width, parts)
    axis.set_title("Each turn's prompt, by where its KV was")


def _draw_paths(axis: Any, turns: list[TurnRecord], begun: np.ndarray, width: float) -> None:
    waited = np.array([turn.first_token_s - turn.arrival_s for turn in turns])
    mostly = np.array([mostly_by(turn) for turn in turns])
    parts = []
    for path in PATHS:
        label, colour = _WAYS[path]
        if (own := mostly == path).any():
            label += f" (TTFT {waited[own].mean():.2g} s)"
        parts.append((label, colour, np.array([brought(turn)[path] for turn in turns])))
    _draw_bars(axis, begun, width, parts)
    axis.set_title("Of it not in memory, by the path it came (mean TTFT of turns where most came so)")


def _draw_bars(axis: Any, begun: np.ndarray, width: float, parts: list[tuple[str, str, np.ndarray]]) -> None:
    """Parts of each turn's tokens on top of each other: label, colour, tokens."""
    bottom = np.zeros(len(begun))
    for label, colour, tokens in parts:
        if tokens.any():
            axis.vlines(begun, bottom, bottom + tokens / 1024, color=colour, linewidth=width, label=label)
        bottom = bottom + tokens / 1024
    axis.set_ylim(bottom=0)
    axis.set_ylabel("Ki tokens")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _draw_waits(axis: Any, turns: list[TurnRecord], begun: np.ndarray) -> None:
    """A point per turn: some wait a hundred times as long as others."""
    parts = np.array(
        [[t.began_s - t.arrival_s, t.got_s - t.began_s, t.first_token_s - t.got_s] for t in turns], dtype=float
    )
    waited, longest = parts.sum(axis=1), parts.argmax(axis=1)
    for n, (label, colour, marker) in enumerate(_PARTS):
        if (mostly := longest == n).any():
            named = f"{label} ({parts[:, n].mean():.2g} s)"
            axis.plot(
                begun[mostly], waited[mostly], linestyle="none", marker=marker, markersize=3.5, color=colour,
                label=named,
            )  # fmt: skip
    median = float(np.median(waited))
    axis.axhline(median, color=GREY, linewidth=0.9, linestyle="--", label=f"median of all ({median:.2g} s)")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylabel("s")
    axis.set_title("Time to its first token, by what it waited for most (mean of all turns)")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _draw_kept(axis: Any, turns: list[TurnRecord], ended: np.ndarray) -> None:
    for place, sizes, line in (
        ("memory", [turn.kept_memory_bytes for turn in turns], "-"),
        ("flash", [turn.kept_flash_bytes for turn in turns], "--"),
    ):
        if any(sizes):
            label, colour = _LOOKS[place]
            axis.step(
                np.append(0.0, ended), np.append(0.0, np.array(sizes) / 2**30), where="post", color=colour,
                linestyle=line, label=label,
            )  # fmt: skip
    axis.set_ylim(bottom=0)
    axis.set_ylabel("GiB")
    axis.set_title("KV kept between turns")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05))
