"""Decoding over time, step by step: what a token waits for, which share of its KV blocks was there, storage's queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.analysis.occupancy import shares, union
from kvferry.analysis.steps import Steps
from kvferry.analysis.style import BLUE, DARK, INK
from kvferry.machine.span import Span

FOR_STORAGE, FOR_COPIES, FOR_OTHERS = "waiting for storage", "waiting for copies", "waiting for others"
# How the two are drawn, beside the looks of what is computed.
WAITING: dict[str, tuple[str, str | None]] = {
    FOR_STORAGE: (BLUE, "////"),
    FOR_COPIES: (DARK, "----"),
    FOR_OTHERS: ("#E6E6E6", None),
}


def waits_s(spans: Sequence[Span], steps: Steps, edges_s: np.ndarray, kind_of: Callable[[Span], str]) -> dict[str, Any]:
    """Seconds of each step by what they went to: an array per kind of the processor's ops, then those in which it
    waited while storage read, while KV was copied between memories, and while neither was. They add up to the step.

    `edges_s`: n + 1 times of tokens, between which the n steps lie.
    """
    lasting_s = np.diff(edges_s)
    inside = [span for span in spans if span.end_s > edges_s[0] and span.start_s < edges_s[-1]]
    own = [span for span in inside if span.resource == steps.processor]
    reads = [span for span in inside if span.resource == "storage" and span.label == "Read"]
    found: dict[str, Any] = {}
    by_kind: dict[str, list[Span]] = {}
    for span in own:
        by_kind.setdefault(kind_of(span), []).append(span)
    for kind, of_kind in sorted(by_kind.items()):
        found[kind] = shares(union(of_kind), edges_s) * lasting_s
    copies = [span for span in inside if span.resource == "copy"]
    busy = own, [*own, *reads], [*own, *reads, *copies]
    *before_s, last_s = (shares(union(part), edges_s) * lasting_s for part in busy)
    after_s = [before_s[1], last_s, lasting_s]
    for kind, before, after in zip((FOR_STORAGE, FOR_COPIES, FOR_OTHERS), [*before_s, last_s], after_s, strict=True):
        found[kind] = np.maximum(after - before, 0.0)
    return found


def storage_depth(spans: Sequence[Span], edges_s: np.ndarray) -> np.ndarray:
    """Of each step the mean number of batches, reads and writes, that were under way in storage. Left out: batches that
    storage had not begun yet, which spans do not tell of."""
    batches = [span for span in spans if span.resource == "storage"]

    def time_since(starts_s: list[float]) -> np.ndarray:
        """The sum of the times since each of these, at each edge."""
        ordered = np.sort(np.array(starts_s, float))
        before = np.searchsorted(ordered, edges_s)
        return before * edges_s - np.concatenate(([0.0], np.cumsum(ordered)))[before]

    in_storage_s = time_since([span.start_s for span in batches]) - time_since([span.end_s for span in batches])
    return np.maximum(np.diff(in_storage_s) / np.diff(edges_s), 0.0)


def reused_shares(step_blocks: Sequence[tuple[int, int]]) -> np.ndarray:
    """Of each step that was carried out the share of its KV blocks that were there; NaN where none was wanted."""
    wanted, reused = np.array(step_blocks, float).reshape(-1, 2).T
    return np.divide(reused, wanted, out=np.full(len(wanted), np.nan), where=wanted > 0)


def draw_waits(axis: Any, waits: Mapping[str, np.ndarray], looks: Mapping[str, tuple[str, str | None]]) -> None:
    """Milliseconds of each step on top of each other: what is computed below, what is waited for above."""
    n = len(next(iter(waits.values())))
    base = np.zeros(n)
    for kind, seconds in waits.items():
        if not (seconds > 1e-9 * max(float(base.max()), 1e-9)).any():
            continue
        colour, hatch = looks[kind]
        top = base + 1e3 * seconds
        axis.stairs(
            top, np.arange(n + 1) + 0.5, baseline=base, fill=True, facecolor=colour, hatch=hatch, edgecolor="white",
            linewidth=0, label=kind,
        )  # fmt: skip
        base = top
    axis.set_title("By step: what each token waits for")
    axis.set_ylabel("ms per token")
    axis.set_ylim(0, 1.05 * float(base.max()) or 1.0)
    _over_steps(axis, n)
    handles, labels = axis.get_legend_handles_labels()
    # As they lie on each other.
    axis.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.2, handleheight=1
    )


def draw_reuse(axis: Any, step_blocks: Sequence[tuple[int, int]]) -> None:
    """The share of reused blocks over the steps that were carried out."""
    found = 100 * reused_shares(step_blocks)
    _draw_line(axis, found, BLUE)
    wanted, reused = np.array(step_blocks).sum(axis=0)
    axis.set_title(
        f"Reuse, of these {len(step_blocks):,} steps: {100 * reused / wanted:.1f} % was there already", size=9
    )
    axis.set_ylabel("% of the step's blocks")
    axis.set_ylim(0, 102)


def draw_depth(axis: Any, depth: np.ndarray) -> None:
    """Storage's queue over the steps."""
    _draw_line(axis, depth, DARK)
    axis.set_title("Storage queue: batches under way, mean", size=9)
    axis.set_ylabel("batches")
    axis.set_ylim(0, 1.1 * float(depth.max()) or 1.0)


def _draw_line(axis: Any, values: np.ndarray, colour: str) -> None:
    few = len(values) <= 40
    axis.plot(
        np.arange(len(values)) + 1, values, color=colour, linewidth=1.3, marker="o" if few else None, markersize=3,
        markeredgecolor=INK, markeredgewidth=0.4,
    )  # fmt: skip
    _over_steps(axis, len(values))


def _over_steps(axis: Any, steps: int) -> None:
    axis.set_xlim(0.5, steps + 0.5)
    axis.set_xlabel("decode step")
    axis.grid(axis="y")
    axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
