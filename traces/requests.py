"""Requests over time: when each one comes, and how long its prompt and answer are."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvferry.specs.workload import ArrivalsSpec, DecodeSpec
from kvferry.traces.chance import Source, generator

# Lengths are drawn within so many standard deviations of their logarithm.
_MOST_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Request:
    """A prompt of `context` tokens that comes at `arrival_s` and asks for `output` more."""

    arrival_s: float
    context: int
    output: int


def gaps_s(arrivals: ArrivalsSpec, seed: int) -> Iterator[float]:
    """Seconds from each request to the next, without end."""
    rng = generator(Source.ARRIVALS, seed)
    while True:
        yield rng.exponential(1 / arrivals.rate_hz) if arrivals.rate_hz else float(arrivals.every_s or 0.0)


def decode_requests(workload: DecodeSpec, requests: int, seed: int) -> tuple[Request, ...]:
    """Those of a decode workload, in order of arrival; the first comes at 0, and all do where it has no arrivals."""
    arrivals_s = np.zeros(requests)
    if workload.arrivals is not None:
        gaps = gaps_s(workload.arrivals, seed)
        arrivals_s[1:] = np.cumsum([next(gaps) for _ in range(requests - 1)])
    if workload.lengths is not None:
        lengths = [(one.context or workload.context, one.output or workload.output) for one in workload.lengths]
    else:
        lengths = _drawn(workload, requests, seed)
    pairs = zip(arrivals_s.tolist(), lengths, strict=True)
    return tuple(Request(arrival_s, context, output) for arrival_s, (context, output) in pairs)


def _drawn(workload: DecodeSpec, requests: int, seed: int) -> list[tuple[int, int]]:
    """Lognormal lengths around the workload's, which are the medians."""
    medians = np.array([workload.context, workload.output])
    drawn = generator(Source.LENGTHS, seed).standard_normal((requests, 2))
    factors = np.exp(workload.spread * np.clip(drawn, -_MOST_DEVIATIONS, _MOST_DEVIATIONS))
    lengths = np.maximum(1, np.rint(medians * factors)).astype(int)
    return [(context, output) for context, output in lengths.tolist()]
