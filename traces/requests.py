"""Requests over time: when each one comes, what it is about, and how long its prompt and answer are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.specs.workload import MOST_REQUESTS, ArrivalsSpec, ContextReuseSpec, DecodeSpec
from kvferry.traces.chance import Source, generator
from kvferry.traces.request import Request
from kvferry.traces.request_log import MOST_RECORDED, RequestLog, read_log

# Lengths are drawn within this many standard deviations of their logarithm.
_MOST_DEVIATIONS = 2.0


def gaps_s(arrivals: ArrivalsSpec, seed: int) -> Iterator[float]:
    """Seconds from each request to the next, without end."""
    rng = generator(Source.ARRIVALS, seed)
    while True:
        yield rng.exponential(1 / arrivals.rate_hz) if arrivals.rate_hz else float(arrivals.every_s or 0.0)


def decode_requests(workload: DecodeSpec, requests: int | None, seed: int) -> tuple[Request, ...]:
    """Returns the requests of ``decode_log``."""
    return decode_log(workload, requests, seed).requests


def decode_log(workload: DecodeSpec, requests: int | None, seed: int) -> RequestLog:
    """Those of a decode workload, in order of arrival; the first comes at 0, and all do where it has no arrivals.

    None: as many as the workload's `lengths` or `trace` hold. Raises InputError for a trace that cannot be read.
    """
    if workload.trace is not None:
        try:
            found, notes = read_log(Path(workload.trace), first=requests, most=MOST_REQUESTS, question=0)
        except InputError as error:
            raise InputError(f"workload.trace: {error}") from None
        # A question is the end of a prompt.
        return RequestLog(tuple(replace(one, context=one.context + one.question, question=0) for one in found), notes)
    if workload.lengths is not None:
        lengths = [(one.context or workload.context, one.output or workload.output) for one in workload.lengths]
    else:
        drawn = lengths_around((workload.context, workload.output), workload.spread, (requests or 1, seed))
        lengths = [(context, output) for context, output in drawn.tolist()]
    pairs = zip(_arrivals_s(workload.arrivals, len(lengths), seed), lengths, strict=True)
    return RequestLog(tuple(Request(arrival_s, context, output) for arrival_s, (context, output) in pairs))


@dataclass(frozen=True)
class ContextRequests:
    """The conversations of a context-reuse workload. ``contexts``: tokens of each stored context, by number; a
    request's ``source`` is its context's number. ``closed``: each comes when the one before has ended."""

    contexts: tuple[int, ...]
    requests: tuple[Request, ...]
    closed: bool
    # Of a log, for the user.
    notes: tuple[str, ...] = ()

    def as_they_came(self, arrivals: Sequence[Request] | None) -> "ContextRequests":
        """These conversations as they came in another run. Raises InputError where it was about other contexts."""
        if arrivals is None:
            return self
        requests = as_they_came(self.requests, arrivals)
        for one in requests:
            if one.source >= len(self.contexts) or one.context != self.contexts[one.source]:
                raise InputError("workload: the recorded requests are about other contexts; record them with this one")
        return replace(self, requests=requests, closed=False)


def as_they_came(asked: tuple[Request, ...], arrivals: Sequence[Request] | None) -> tuple[Request, ...]:
    """The requests at the times and of the lengths that another run recorded, or as they are asked for where it is
    None. Raises InputError for a recording of more or fewer requests, as an interrupted run leaves."""
    if arrivals is None:
        return asked
    if len(arrivals) != len(asked):
        raise InputError(f"workload: {len(arrivals):,} requests were recorded, this run has {len(asked):,}")
    return tuple(arrivals)


def context_requests(workload: ContextReuseSpec, seed: int) -> ContextRequests:
    """Raises InputError for a trace that cannot be read, or asks for more than a run may have."""
    if workload.trace is not None:
        path = Path(workload.trace)
        found, notes = read_log(path, first=workload.requests, most=MOST_RECORDED, question=workload.question)
        if not all(one.question for one in found):
            raise InputError(f"{path}: holds a question of 0 tokens; its answer begins with 1 at least")
        own = tuple(replace(one, source=n) for n, one in enumerate(found))
        return ContextRequests(tuple(one.context for one in own), own, closed=False, notes=notes)
    n = workload.requests or 1
    sources = _sources(workload, n, seed)
    contexts = lengths_around((workload.context,), workload.spread, (max(sources) + 1, seed, 1))[:, 0].tolist()
    asked = lengths_around((workload.question, workload.output), workload.spread, (n, seed, 2)).tolist()
    arrivals_s = _arrivals_s(workload.arrivals, n, seed)
    requests = tuple(
        Request(arrival_s, contexts[source], output, question, source)
        for arrival_s, source, (question, output) in zip(arrivals_s, sources, asked, strict=True)
    )
    return ContextRequests(tuple(contexts), requests, closed=workload.arrivals is None)


def _sources(workload: ContextReuseSpec, requests: int, seed: int) -> list[int]:
    """Which context each request is about: the k-th most popular with probability proportional to 1 / k^zipf."""
    if workload.contexts is None:
        return list(range(requests))
    weights = np.arange(1, workload.contexts + 1, dtype=float) ** -workload.zipf
    chosen = generator(Source.POPULARITY, seed).choice(workload.contexts, size=requests, p=weights / weights.sum())
    return [int(source) for source in chosen]


def _arrivals_s(arrivals: ArrivalsSpec | None, requests: int, seed: int) -> list[float]:
    """The first at 0; all of them without an arrival process."""
    arrivals_s = np.zeros(requests)
    if arrivals is not None:
        gaps = gaps_s(arrivals, seed)
        arrivals_s[1:] = np.cumsum([next(gaps) for _ in range(requests - 1)])
    found: list[float] = arrivals_s.tolist()
    return found


def lengths_around(medians: Sequence[int], spread: float, of: tuple[int, ...]) -> np.ndarray:
    """Lognormal lengths int[requests, medians], for `of`: the number of requests, the seed and the place of chance."""
    requests, seed, *place = of
    drawn = generator(Source.LENGTHS, seed, *place).standard_normal((requests, len(medians)))
    factors = np.exp(spread * np.clip(drawn, -_MOST_DEVIATIONS, _MOST_DEVIATIONS))
    return np.maximum(1, np.rint(np.array(medians) * factors)).astype(int)
