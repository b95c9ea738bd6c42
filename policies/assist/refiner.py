"""Refiners: which tokens of a long prompt a device needs, by the attention that the cloud's prefill has shown
(P/D-Device 3.2; Tab. 2's methods of selection)."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# Width of SnapKV's pooling over neighbouring tokens, and StreamingLLM's sinks.
POOLED_TOKENS = 7
SINK_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Shown:
    """What a prefill has shown of a prompt's content, between its fixed beginning and its question.

    ``window``: float[heads, tokens], the attention that the last queries (the observation window) pay each token,
    summed over these queries. ``whole``: the same for all queries of the prompt. ``sentences``: int[tokens], the number
    of the sentence that each token belongs to, ascending.
    """

    window: np.ndarray
    whole: np.ndarray
    sentences: np.ndarray

    def __post_init__(self) -> None:
        if self.window.ndim != 2 or self.window.shape != self.whole.shape:
            raise ValueError(f"scores are float[heads, tokens], got {self.window.shape} and {self.whole.shape}")
        if self.sentences.shape != self.window.shape[1:] or (np.diff(self.sentences) < 0).any():
            raise ValueError("each token belongs to a sentence, and sentences ascend")

    @property
    def tokens(self) -> int:
        return int(self.window.shape[1])


class Refiner(Protocol):
    def kept(self, shown: Shown, tokens: int) -> np.ndarray:
        """bool[tokens of the content]: at most `tokens` of them, at least one sentence or token where `tokens` is at
        least one."""
        ...


@dataclass(frozen=True)
class SnapKv:
    """Tokens that most heads have among their best, by the observation window, pooled over neighbours. ``sentences``:
    whole ones, so that what is kept can be read; their tokens' votes count on average. ``weighted``: a vote weighs as
    much as the attention that the head pays, so that a few heads that look far back are not outvoted by many that look
    at anything. P/D-Device does not say how heads agree."""

    sentences: bool = False
    weighted: bool = False

    def kept(self, shown: Shown, tokens: int) -> np.ndarray:
        best = votes(pooled(shown.window, POOLED_TOKENS), tokens, weighted=self.weighted)
        return best_sentences(shown.sentences, best, tokens) if self.sentences else _best(best, tokens)


@dataclass(frozen=True)
class HeavyHitters:
    """H2O: half are the tokens that all queries together paid most attention, half the newest."""

    def kept(self, shown: Shown, tokens: int) -> np.ndarray:
        newest = tokens // 2
        scores = shown.whole.sum(axis=0)
        if newest:
            scores[-newest:] = np.inf
        return _best(scores, tokens)


@dataclass(frozen=True)
class SinksAndNewest:
    """StreamingLLM: the first few tokens and the newest."""

    def kept(self, shown: Shown, tokens: int) -> np.ndarray:
        kept = np.zeros(shown.tokens, np.bool_)
        sinks = min(SINK_TOKENS, tokens)
        kept[:sinks] = True
        kept[shown.tokens - min(tokens - sinks, shown.tokens) :] = tokens > sinks
        return kept


# The ones that go by the observation window or by nothing, which a cloud's prefill can show; H2O needs all queries.
OF_THE_WINDOW: dict[str, Refiner] = {
    "snapkv-sentences": SnapKv(sentences=True),
    "weighted-sentences": SnapKv(sentences=True, weighted=True),
    "snapkv": SnapKv(),
    "streaming-llm": SinksAndNewest(),
}
REFINERS: dict[str, Refiner] = {**OF_THE_WINDOW, "h2o": HeavyHitters()}


def pooled(scores: np.ndarray, width: int) -> np.ndarray:
    """float[heads, tokens]: the mean over `width` tokens around each (an odd number); at the ends, over fewer."""
    half, tokens = width // 2, scores.shape[1]
    sums = np.concatenate([np.zeros((len(scores), 1)), np.cumsum(scores, axis=1)], axis=1)
    begins = np.maximum(0, np.arange(tokens) - half)
    ends = np.minimum(tokens, np.arange(tokens) + half + 1)
    return (sums[:, ends] - sums[:, begins]) / (ends - begins)


def votes(scores: np.ndarray, most: int, *, weighted: bool = False) -> np.ndarray:
    """float[tokens]: how many heads have a token among their `most` best, of equal ones the first; or, `weighted`, the
    sum of these heads' scores."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :most]
    weights = np.take_along_axis(scores, best, axis=1).ravel() if weighted else None
    return np.bincount(best.ravel(), weights, minlength=scores.shape[1]).astype(float)


def best_sentences(sentences: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """bool[tokens]: whole sentences, those with the best mean score first, as long as `most` tokens hold them. Where
    they hold none, the best one's first tokens."""
    names, of_token, sizes = np.unique(sentences, return_inverse=True, return_counts=True)
    means = np.bincount(of_token, weights=scores, minlength=len(names)) / sizes
    kept, left = np.zeros(len(names), np.bool_), most
    order = np.argsort(-means, kind="stable")
    for sentence in order:
        if sizes[sentence] <= left:
            kept[sentence], left = True, left - sizes[sentence]
    tokens: np.ndarray = kept[of_token]
    if most and not tokens.any():
        tokens[np.flatnonzero(of_token == order[0])[:most]] = True
    return tokens


def content_tokens(prompt_tokens: int, fixed_tokens: int, ratio: float) -> int:
    """How many tokens of the content may stay when the fixed beginning and question count in the ratio; at least one,
    where there is any content."""
    content = prompt_tokens - fixed_tokens
    return min(content, max(1, math.floor(ratio * prompt_tokens) - fixed_tokens)) if content else 0


def _best(scores: np.ndarray, most: int) -> np.ndarray:
    kept = np.zeros(len(scores), np.bool_)
    kept[np.argsort(-scores, kind="stable")[:most]] = True
    return kept
