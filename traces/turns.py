"""The turns of a session workload: drawn from its description, or read from a recording."""

import math
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.specs.session import PERCENTILES, Length, SessionSpec
from kvferry.specs.workload import MOST_TOKENS_PER_RUN
from kvferry.traces.block_ids import BlockIds
from kvferry.traces.chance import Source, generator
from kvferry.traces.turn import USUAL_BLOCK, Stream, Turn, Turns

# Lengths are drawn within this many standard deviations of their logarithm.
_MOST_DEVIATIONS = 3.0


def turns_of(workload: SessionSpec, seed: int) -> Turns:
    """Raises InputError for a recording that cannot be read, or asks for more than a run may have."""
    if workload.trace is None:
        try:
            found = _drawn(workload, seed)
        except InputError as error:
            raise InputError(f"workload.block: {error}") from None
    else:
        found = _recorded(workload, workload.trace, seed)
    tokens = sum(turn.output for turn in found.numbered)
    if tokens > MOST_TOKENS_PER_RUN:
        what = f"{tokens:,} tokens to answer; at most {MOST_TOKENS_PER_RUN:,} will do"
        raise InputError(f"workload.turns: make {what}")
    return found


def _recorded(workload: SessionSpec, trace: str, seed: int) -> Turns:
    # Recordings are parsed for a run that has one.
    from kvferry.traces.recorded_turns import recorded_turns

    rng = generator(Source.SESSIONS, seed, 0, 2)
    try:
        return recorded_turns(
            Path(trace),
            turns=workload.turns,
            block=workload.block,
            users=workload.at_once,
            gaps_s=lambda goes_on: _gap_s(workload, rng, goes_on),
            seed=seed,
        )
    except InputError as error:
        raise InputError(f"workload.trace: {error}") from None


def _drawn(workload: SessionSpec, seed: int) -> Turns:
    """Turns by chance: `at_once` users hold one conversation after the other, each about one context."""
    sizes, ids, conversations = generator(Source.LENGTHS, seed, 3), BlockIds(), count()
    block, users = workload.block or USUAL_BLOCK, min(workload.at_once, workload.turns)
    contexts = [_drawn_length(sizes, workload, "context") for _ in range(workload.contexts)]

    @cache
    def document(source: int) -> tuple[int, ...]:
        """Named when it is asked about: of many contexts few ever are."""
        return _document(workload, block, ids, source, workload.beginning + contexts[source])

    streams: list[Stream] = []
    for user in range(users):
        rng, turns = generator(Source.SESSIONS, seed, user), list[Turn]()
        wanted = workload.turns // users + (user < workload.turns % users)
        while len(turns) < wanted:
            source = _popular(rng, workload)
            known = workload.beginning + contexts[source]
            left = wanted - len(turns)
            turns += _conversation(
                workload, block, rng, ids, document(source), known, next(conversations), source, left
            )
        streams.append(tuple(turns))
    return Turns(tuple(streams), block)


def _conversation(
    workload: SessionSpec,
    block: int,
    rng: np.random.Generator,
    ids: BlockIds,
    document: tuple[int, ...],
    known: int,
    conversation: int,
    source: int,
    most: int,
) -> list[Turn]:
    """As many turns as it has, or `most`."""
    chain, found = document, list[Turn]()
    while not found or (len(found) < most and rng.random() * workload.turns_each >= 1):
        question = _drawn_length(rng, workload, "question")
        output = _drawn_length(rng, workload, "output")
        prompt = known + question
        blocks = ids.grown(chain, prompt // block)
        chain = ids.grown(blocks, (prompt + output) // block)
        turn = Turn(
            conversation=conversation,
            number=len(found),
            prompt=prompt,
            output=output,
            blocks=blocks,
            leaves=chain,
            after_s=_gap_s(workload, rng, bool(found)),
            source=source,
            stored=len(document) if workload.in_cloud == "contexts" else 0,
        )
        found.append(turn)
        known = prompt + output
    return found


def _document(workload: SessionSpec, block: int, ids: BlockIds, source: int, tokens: int) -> tuple[int, ...]:
    """Ids of the whole blocks that conversations about a context begin with: the common beginning, then its own."""

    def content(n: int) -> str:
        return "beginning" if (n + 1) * block <= workload.beginning else f"context {source}"

    return ids.chain(tokens // block, content)


def _popular(rng: np.random.Generator, workload: SessionSpec) -> int:
    weights = np.arange(1, workload.contexts + 1, dtype=float) ** -workload.zipf
    return int(rng.choice(workload.contexts, p=weights / weights.sum()))


def _gap_s(workload: SessionSpec, rng: np.random.Generator, goes_on: bool) -> float:
    """From an answer to the next question, of the same conversation or of another."""
    if goes_on:
        return float(workload.think_s * math.exp(workload.think_spread * rng.standard_normal()))
    return float(rng.exponential(workload.pause_s)) if workload.pause_s else 0.0


def _drawn_length(rng: np.random.Generator, workload: SessionSpec, length: Length) -> int:
    """By its percentiles, or else lognormal; a median of 0 stays 0."""
    if percentiles := workload.percentiles_of(length):
        return round(math.exp(np.interp(100 * rng.random(), PERCENTILES, np.log(percentiles))))
    median: int = getattr(workload, length)
    if not median:
        return 0
    drawn = float(np.clip(rng.standard_normal(), -_MOST_DEVIATIONS, _MOST_DEVIATIONS))
    return max(1, round(median * math.exp(workload.spread_of(length) * drawn)))
