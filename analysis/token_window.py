"""Which tokens of a decode run a picture shows, and how it says that they are a part of the output."""

from dataclasses import replace

from kvferry.pipelines.record import Run


def tokens_drawn(run: Run) -> int:
    """Tokens of a sequence whose decoding was carried out and has times; 0 where none decodes."""
    if run.decoded is None:
        return 0
    return len(run.decoded.token_times_s) or max((len(r.token_times_s) for r in run.requests), default=0)


def with_tokens(title: str, run: Run) -> str:
    """The title, and how many of how many tokens of the output are drawn where they are fewer."""
    if run.decoded is None or not 0 < tokens_drawn(run) < run.decoded.output:
        return title
    return f"{title}{', ' if title else ''}first {tokens_drawn(run):,} of {run.decoded.output:,} tokens"


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


def between(run: Run, start_s: float, end_s: float) -> Run:
    """What happened in this time, on a clock that begins with it; requests and their tokens stay as they were."""
    spans = tuple(
        span._replace(start_s=max(span.start_s, start_s) - start_s, end_s=min(span.end_s, end_s) - start_s)
        for span in run.spans
        if span.end_s > start_s and span.start_s < end_s
    )
    warmth = None if run.warmth is None else run.warmth.between(start_s, end_s)
    return replace(run, spans=spans, duration_s=end_s - start_s, warmth=warmth)
