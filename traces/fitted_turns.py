"""Fits a session workload to a log of conversations: turns, lengths, think times, and what they share."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from kvferry.specs.session import PERCENTILES, Length
from kvferry.traces.turn import Turns
from kvferry.traces.turn_logs import Recorded

# Zipf's exponents that are tried.
_ZIPFS = np.arange(0.0, 1.6, 0.1)
# Think times are lognormal. The deviation is read between the median and this percentile, so many deviations above:
# logs have more short ones than a lognormal.
_HIGH, _DEVIATIONS = 90, 1.2816
# The deviation that a scenario may have.
_MOST_THINK_SPREAD = 3.0


def fitted(recorded: Recorded) -> dict[str, Any]:
    """Returns the keys of a session workload, all sizes in tokens, whose turns are like the log's.

    What users wait for is inside the log's gaps, so
    that `think_s` is at most what they think. How conversations share their beginnings is told by hash ids alone:
    without them all of a prompt is new, and nothing lies in the cloud.
    """
    turns = recorded.conversations
    asked = np.array([b.prompt - a.prompt - a.output for one in turns for a, b in pairwise(one)])
    found: dict[str, Any] = {"turns_each": round(len(recorded) / len(turns), 3)}
    first = np.array([one[0].prompt for one in turns])
    if asked.size:
        gaps_s = [b.arrival_s - a.arrival_s for one in turns for a, b in pairwise(one)
                  if a.arrival_s is not None and b.arrival_s is not None]  # fmt: skip
        if gaps_s:
            think_s, think_spread = _lognormal(np.maximum(gaps_s, 1e-3))
            found |= {"think_s": round(think_s, 1), "think_spread": round(min(_MOST_THINK_SPREAD, think_spread), 2)}
        beginning, shared = _shared(recorded)
        context = first - beginning - np.median(asked)
        found |= {"beginning": beginning, **_length("context", context), **shared, **_length("question", asked)}
    else:
        found |= {"context": 0, "in_cloud": "nothing", **_length("question", first)}
    return found | _length("output", np.array([turn.output for one in turns for turn in one]))


def _length(name: Length, tokens: Any) -> dict[str, Any]:
    """Returns the keys of a length: its median, and how it is distributed."""
    at = np.percentile(np.maximum(tokens, 1), PERCENTILES).round().astype(int).tolist()
    return {name: at[PERCENTILES.index(50)], f"{name}_percentiles": tuple(at)}


def _lognormal(values: Any) -> tuple[float, float]:
    """Returns the median, and the deviation of the logarithm."""
    median, high = np.percentile(values, [50, _HIGH])
    return float(median), float(np.log(high / median) / _DEVIATIONS)


def _shared(recorded: Recorded) -> tuple[int, dict[str, Any]]:
    """Returns the tokens that all conversations begin with, and of how many contexts they are by which law: so that as
    large a share of conversations begins as an earlier one did, and the one that comes most often comes as often."""
    if recorded.block is None:
        return 0, {}
    firsts = [one[0].ids or () for one in recorded.conversations]
    whole = [ids for ids in firsts if len(ids) > 1]
    common, shortest = 0, min(map(len, whole), default=0)
    while common < shortest and len({ids[: common + 1] for ids in whole}) == 1:
        common += 1
    counts = Counter(ids[: common + 1] for ids in whole if len(ids) > common)
    if not counts:
        return common * recorded.block, {}
    n, distinct, most = counts.total(), len(counts), max(counts.values())
    best = min(
        ((zipf, *_contexts(n, distinct, zipf)) for zipf in _ZIPFS), key=lambda one: abs(np.log(n * one[2] / most))
    )
    return common * recorded.block, {"contexts": best[1], "zipf": round(float(best[0]), 1)}


def _contexts(n: int, distinct: int, zipf: float) -> tuple[int, float]:
    """Returns how many contexts there are where so many of `n` conversations are about different ones, at most as many
    as a scenario may have; and the share of the first."""
    low, high = distinct, 100_000
    while low < high:
        middle = (low + high) // 2
        weights = np.arange(1, middle + 1) ** -zipf
        expected = float((1 - (1 - weights / weights.sum()) ** n).sum())
        low, high = (middle + 1, high) if expected < distinct else (low, middle)
    weights = np.arange(1, low + 1) ** -zipf
    return low, float(weights[0] / weights.sum())


# Percentiles that statistics show.
SHOWN = (50, 90, 99)


def statistics(turns: Turns) -> dict[str, list[float]]:
    """Returns figures of turns, recorded or drawn: per conversation its turns; of first prompts, of what is asked in
    later turns, of answers, and of seconds from a turn to the next, the percentiles of ``SHOWN``; and the share of
    prompts' tokens that an earlier turn had, in all and in first turns, were all kept."""
    by_conversation: dict[int, list[Any]] = {}
    for turn in turns.numbered:
        by_conversation.setdefault(turn.conversation, []).append(turn)
    pairs = [(a, b) for one in by_conversation.values() for a, b in pairwise(one)]
    lengths = {
        "turns": [len(one) for one in by_conversation.values()],
        "first prompt": [one[0].prompt for one in by_conversation.values()],
        "asked later": [b.prompt - a.prompt - a.output for a, b in pairs],
        "answer": [turn.output for turn in turns.numbered],
        "until the next, s": [b.after_s if b.due_s is None or a.due_s is None else b.due_s - a.due_s for a, b in pairs],
    }
    found = {key: np.percentile(values, SHOWN).tolist() if values else [] for key, values in lengths.items()}
    seen: set[int] = set()
    reused, first_reused, tokens, first_tokens = 0, 0, 0, 0
    for turn in turns.expected:
        there = next((n for n, one in enumerate(turn.blocks) if one not in seen), len(turn.blocks)) * turns.block
        reused, tokens = reused + there, tokens + turn.prompt
        if not turn.number:
            first_reused, first_tokens = first_reused + there, first_tokens + turn.prompt
        seen.update(turn.blocks)
    found["found before, %"] = [100 * reused / tokens]
    found["of first prompts, %"] = [100 * first_reused / first_tokens]
    return found
