"""What is made from a trace: a part of it, a later start, outages, a course to draw."""

import itertools
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from kvferry.traces.rate import RateTrace
from kvferry.traces.replay import without_empty


def trimmed(trace: RateTrace, start_s: float, end_s: float) -> RateTrace:
    """The part between two times, moved to 0; `on_end` applies to its new end."""
    edges, rates = trace.segments(start_s, end_s)
    return RateTrace(*without_empty(edges - start_s, rates), trace.on_end)


def shifted(trace: RateTrace, offset_s: float) -> RateTrace:
    """The same replay, starting at `offset_s`."""
    offset_s = trace.fold(offset_s)[1]
    end_s = trace.duration_s
    if trace.on_end == "loop" and offset_s > trace.loop_from_s:
        end_s = offset_s + trace.duration_s - trace.loop_from_s
    elif offset_s >= end_s:
        end_s = offset_s + 1.0
    edges, rates = trace.segments(offset_s, end_s)
    return RateTrace(*without_empty(edges - offset_s, rates), trace.on_end, max(0.0, trace.loop_from_s - offset_s))


def with_outages(trace: RateTrace, outages: Iterable[tuple[float, float]]) -> RateTrace:
    """Rate 0 between each (start_s, end_s) of the replay, once: a loop goes on undisturbed afterwards.

    However long an outage is, it is one piece. ValueError when what plays before and between the outages takes
    more than `MAX_PIECES` pieces.
    """
    pieces: list[tuple[np.ndarray, np.ndarray]] = []
    at_s = 0.0
    for start_s, end_s in sorted(outages):
        if not 0 <= start_s < end_s:
            raise ValueError(f"an outage from {start_s} to {end_s} is no span of the replay")
        if start_s > at_s:
            pieces.append(trace.segments(at_s, start_s))
        if end_s > at_s:
            pieces.append((np.array([max(start_s, at_s), end_s]), np.zeros(1)))
            at_s = end_s
    if not pieces:
        return trace
    loops = trace.on_end == "loop"
    settled_s = max(at_s, trace.loop_start_s)
    pieces.append(trace.segments(at_s, settled_s + (_period_s(trace) if loops else 1.0)))
    edges = np.concatenate([*(edges[:-1] for edges, _ in pieces), pieces[-1][0][-1:]])
    rates = np.concatenate([rates for _, rates in pieces])
    return RateTrace(edges, rates, "loop" if loops else "hold", settled_s if loops else 0.0)


def _period_s(trace: RateTrace) -> float:
    """How long a loop takes. Recorded periods are rounded: a millionth of a second is not told from them."""
    period_s = trace.duration_s - trace.loop_from_s
    return float(Fraction(period_s).limit_denominator(10**6) or period_s)


def course(trace: RateTrace, start_s: float, end_s: float, most_pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """For drawing: ``segments``, or the means of `most_pieces` equal steps where there are more segments."""
    if trace.pieces_within(start_s, end_s) <= most_pieces:
        return trace.segments(start_s, end_s)
    edges = np.linspace(start_s, end_s, most_pieces + 1)
    moved = np.array([trace.amount(a, b) for a, b in itertools.pairwise(edges.tolist())])
    return edges, moved / np.diff(edges)
