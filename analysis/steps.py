"""Which decode step and layer a span belongs to, of a batch that decodes in lock step."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvferry.machine.ops import OPS
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run

# The ops that end a layer.
LAST_OPS = tuple(label for label, op in OPS.items() if op.ends_layer)


@dataclass(frozen=True)
class Steps:
    """The decode steps of a run whose spans are all kept, in order.

    ``ends_s[n]``: the end of each layer in step n, the last one before the token is; ``processor``: what computes them.
    """

    starts_s: tuple[float, ...]
    ends_s: tuple[tuple[float, ...], ...]
    processor: str

    def of(self, span: Span) -> tuple[int | None, int | None]:
        """(step, layer) of a span, None where it is in none or may belong to another layer than the one that runs."""
        step = bisect_right(self.starts_s, span.start_s + 1e-12) - 1
        if step < 0 or step >= len(self.ends_s):
            return None, None
        if span.resource != self.processor or not _is_surely_of_its_layer(span.label):
            return step, None
        # An op that ends a layer ends with it; attention begins after the layer before has ended.
        layer = int(np.searchsorted(self.ends_s[step], span.end_s - 1e-12))
        return step, layer if layer < len(self.ends_s[step]) else None


def _is_surely_of_its_layer(label: str) -> bool:
    """Whether an op is of the layer in which it runs; what is selected and read may be for the layer ahead."""
    op = OPS.get(label)
    return op is not None and (op.ends_layer or op.purpose == "attention")


def steps_of(run: Run) -> Steps | None:
    """None where nothing decodes in lock step, or no step has the spans of all its layers."""
    decoded = run.decoded
    if decoded is None or len(decoded.token_times_s) < 2:
        return None
    last = sorted((span for span in run.spans if span.label in LAST_OPS), key=lambda span: span.end_s)
    if not last:
        return None
    times_s = carried_out_s(run)
    ends: list[tuple[float, ...]] = []
    for start_s, end_s in itertools.pairwise(times_s):
        inside = _ends_within([span.end_s for span in last], start_s, end_s)
        if len(inside) != decoded.layers:
            break
        ends.append(inside)
    return Steps(tuple(times_s[: len(ends)]), tuple(ends), last[0].resource) if ends else None


def _ends_within(ends_s: Sequence[float], start_s: float, end_s: float) -> tuple[float, ...]:
    return tuple(ends_s[bisect_right(ends_s, start_s + 1e-12) : bisect_right(ends_s, end_s + 1e-12)])


def carried_out_s(run: Run) -> tuple[float, ...]:
    """Returns when each token of a sequence whose decoding was carried out was there, on the clock of the spans; of the
    one with the most where requests come and go."""
    if run.decoded is None:
        return ()
    times_s = run.decoded.token_times_s if run.decoded.carried_out_s is None else run.decoded.carried_out_s
    return times_s or max((r.token_times_s for r in run.requests), key=len, default=())


def carried_out(run: Run) -> Sequence[int]:
    """Returns which tokens of the output these are, from 0 on."""
    known = None if run.decoded is None else run.decoded.carried_out
    return range(len(carried_out_s(run))) if known is None else known


def tokens_drawn(run: Run) -> int:
    """Tokens of a sequence whose decoding was carried out and has times; 0 where none decodes."""
    return len(carried_out_s(run))


def with_tokens(title: str, run: Run) -> str:
    """The title, and how many of how many tokens of the output are drawn where they are fewer."""
    if run.decoded is None or not 0 < tokens_drawn(run) < run.decoded.output:
        return title
    which = "first " if run.decoded.carried_out is None else ""
    return f"{title}{', ' if title else ''}{which}{tokens_drawn(run):,} of {run.decoded.output:,} tokens"


def prefill_end_s(run: Run) -> float | None:
    """When all sequences have their first token, where none has another one before; None where prefill and decoding
    are not apart."""
    if run.decoded is None:
        return None
    times_s = [r.token_times_s for r in run.requests if r.token_times_s]
    if not times_s or len(times_s) < len(run.requests):
        return None
    end_s = max(times[0] for times in times_s)
    seconds = [times[1] for times in times_s if len(times) > 1]
    return end_s if seconds and end_s <= min(seconds) else None


def over_tokens(run: Run, tokens: Sequence[int]) -> Run | None:
    """Returns what happened from the first of these tokens of the output to the last, but for the time that went into
    others, on a clock that begins with it. None where one of them was not carried out."""
    at = {token: n for n, token in enumerate(carried_out(run))}
    if not all(token in at for token in tokens):
        return None
    times_s, stretches = carried_out_s(run), list[tuple[float, float]]()
    for token in tokens[1:]:
        start_s, end_s = times_s[at[token] - 1], times_s[at[token]]
        if stretches and stretches[-1][1] == start_s:
            start_s, _ = stretches.pop()
        stretches.append((start_s, end_s))
    parts = [between(run, *stretch) for stretch in stretches]
    begins_s = itertools.accumulate((part.duration_s for part in parts), initial=0.0)
    spans = tuple(
        span._replace(start_s=begin_s + span.start_s, end_s=begin_s + span.end_s)
        for begin_s, part in zip(begins_s, parts, strict=False)
        for span in part.spans
    )
    warmth = parts[0].warmth if len(parts) == 1 else None
    return replace(run, spans=spans, duration_s=sum(part.duration_s for part in parts), warmth=warmth)


def between(run: Run, start_s: float, end_s: float) -> Run:
    """What happened in this time, on a clock that begins with it; requests and their tokens stay as they were."""
    spans = tuple(
        span._replace(start_s=max(span.start_s, start_s) - start_s, end_s=min(span.end_s, end_s) - start_s)
        for span in run.spans
        if span.end_s > start_s and span.start_s < end_s
    )
    warmth = None if run.warmth is None else run.warmth.between(start_s, end_s)
    return replace(run, spans=spans, duration_s=end_s - start_s, warmth=warmth)
