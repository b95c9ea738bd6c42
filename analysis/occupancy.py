"""When a resource was busy: unions of spans, their share of a window, rows without overlap, delivered rate."""

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from kvferry.machine.span import Span

# Intervals are a pair of float arrays (starts, ends), sorted and disjoint.
Intervals = tuple[np.ndarray, np.ndarray]


def union(spans: Iterable[Span], gap_s: float = 0.0) -> Intervals:
    """The time covered by at least one span; gaps of at most `gap_s` are closed."""
    pairs = np.array([(span.start_s, span.end_s) for span in spans], dtype=float).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    starts, reach = pairs[:, 0], np.maximum.accumulate(pairs[:, 1])
    if not len(starts):
        return starts, reach
    first = np.concatenate(([True], starts[1:] > reach[:-1] + gap_s))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def busy_share(spans: Iterable[Span], start_s: float, end_s: float) -> float | None:
    """The share of [start_s, end_s] in which at least one span ran; None for an empty window."""
    if end_s <= start_s:
        return None
    starts, ends = union(spans)
    covered = np.clip(ends, start_s, end_s) - np.clip(starts, start_s, end_s)
    return min(float(covered.sum()) / (end_s - start_s), 1.0)


def rows(spans: Sequence[Span]) -> list[int]:
    """A row for each span so that no two on one row overlap; as few rows as possible, the lowest free first."""
    row_of = [0] * len(spans)
    free: list[int] = []
    running: list[tuple[float, int]] = []
    n_rows = 0
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].start_s, spans[i].end_s, i)):
        while running and running[0][0] <= spans[index].start_s:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, n_rows = n_rows, n_rows + 1
        row_of[index] = row
        heapq.heappush(running, (spans[index].end_s, row))
    return row_of


def delivered(spans: Iterable[Span], times_s: Sequence[float], bytes_per_s: Sequence[float]) -> Intervals:
    """The rate at which the link delivered: edges (n + 1) and bytes per second (n); the area is what the spans moved.

    A span's bytes are spread over its time in proportion to the replayed rate (`times_s` n + 1 edges,
    `bytes_per_s` n rates), evenly where no rate is known. Left out: how concurrent flows shared an instant,
    which moves bytes within a span's own time only.
    """
    moving = [span for span in spans if span.n_bytes > 0 and span.end_s > span.start_s]
    if not moving:
        return np.zeros(0), np.zeros(0)
    starts = np.array([span.start_s for span in moving])
    ends = np.array([span.end_s for span in moving])
    n_bytes = np.array([span.n_bytes for span in moving])
    edges = np.unique(np.concatenate((np.asarray(times_s, float), starts, ends)))
    middles = (edges[1:] + edges[:-1]) / 2
    trace = _rate_at(middles, np.asarray(times_s, float), np.asarray(bytes_per_s, float))
    begin, end = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    area = np.concatenate(([0.0], np.cumsum(trace * np.diff(edges))))
    carried = area[end] - area[begin]
    # A span that lies wholly in an outage (or outside the trace) has no shape to follow: spread it evenly.
    shaped = carried > 0
    shape = _active(len(trace), begin[shaped], end[shaped], n_bytes[shaped] / carried[shaped])
    even = _active(len(trace), begin[~shaped], end[~shaped], (n_bytes / (ends - starts))[~shaped])
    return edges, trace * shape + even


def _rate_at(points_s: np.ndarray, times_s: np.ndarray, bytes_per_s: np.ndarray) -> np.ndarray:
    if not len(bytes_per_s):
        return np.zeros_like(points_s)
    index = np.searchsorted(times_s, points_s, side="right") - 1
    inside = (index >= 0) & (index < len(bytes_per_s))
    return np.where(inside, bytes_per_s[np.clip(index, 0, len(bytes_per_s) - 1)], 0.0)


def _active(n: int, begin: np.ndarray, end: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """For each of n segments the summed weight of the spans [begin, end) that cover it."""
    change = np.zeros(n + 1)
    np.add.at(change, begin, weight)
    np.add.at(change, end, -weight)
    count = np.zeros(n + 1, dtype=int)
    np.add.at(count, begin, 1)
    np.add.at(count, end, -1)
    # Where nothing runs the running sum is only rounding.
    return np.where(np.cumsum(count)[:n] > 0, np.maximum(np.cumsum(change)[:n], 0.0), 0.0)


def shares(intervals: Intervals, edges_s: np.ndarray) -> np.ndarray:
    """How much of each of the n slots between n + 1 edges the intervals cover, 0 to 1."""
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(edges_s) - 1)
    done = np.concatenate(([0.0], np.cumsum(ends - starts)))
    points = np.column_stack((starts, ends)).ravel()
    covered = np.interp(edges_s, points, np.column_stack((done[:-1], done[1:])).ravel())
    return np.clip(np.diff(covered) / np.diff(edges_s), 0.0, 1.0)
