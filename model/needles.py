"""Prompts with a needle: text, in which a fact stands that the question at its end asks for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.model.tokens import Tokens
from kvferry.traces.chance import Source, generator

# A full stop, question or exclamation mark with space behind it, or the end of a line.
_END = re.compile(r"[.!?]+\s+|\n+")


def sentence_numbers(text: str, begins: Sequence[int]) -> np.ndarray:
    """int[tokens]: the number of the sentence in which each token begins; `begins` are places in the text,
    ascending."""
    ends = np.array([found.end() for found in _END.finditer(text)], dtype=np.int64)
    return np.searchsorted(ends, np.asarray(begins), side="right")


_LETTERS, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
# The words of a fact and of its question; the bundled models have learnt to answer it (docs/models.md).
_FACT, _QUESTION = "\nThe secret code of {key} is {value}.\n", "\nThe secret code of {key} is "


@dataclass(frozen=True)
class NeedlePrompt:
    """Text in three parts, and what the right answer begins with; None: the prompt is too short for a needle."""

    beginning: str
    content: str
    question: str
    value: str | None


def needle_prompt(
    tokens: Tokens, text: Sequence[int], beginning: int, content: int, question: int, *, seed: int, number: int
) -> NeedlePrompt:
    """A prompt of this many tokens in each part, made of the ids of a text: as many as its parts have together. The
    fact stands anywhere in the content, as seed and number have it."""
    rng = generator(Source.NEEDLES, seed, number)
    key, value = "".join(rng.choice(list(_LETTERS), 6)), "".join(rng.choice(list(_DIGITS), 6))
    fact, asked = tokens.encode(_FACT.format(key=key, value=value)), tokens.encode(_QUESTION.format(key=key))
    head, body, tail = text[:beginning], text[beginning : beginning + content], text[beginning + content :]
    if len(fact) > content or len(asked) > question:
        return NeedlePrompt(tokens.decode(head), tokens.decode(body), tokens.decode(tail[:question]), None)
    at = int(rng.integers(content - len(fact) + 1))
    within = tokens.decode(body[:at]) + tokens.decode(fact) + tokens.decode(body[at : content - len(fact)])
    last = tokens.decode(tail[: question - len(asked)]) + tokens.decode(asked)
    return NeedlePrompt(tokens.decode(head), within, last, value)
