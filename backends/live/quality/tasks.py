"""What decoding is made to say where its quality is measured: a text's own continuation, needles in it, lines of it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kvferry.model.prompts import Prompts
from kvferry.model.tokens import Tokens
from kvferry.specs.errors import InputError

NEEDLES = 8
FACT, QUESTION = "The secret code of {} is {}.\n", "The secret code of {} is "
# Random letters of a line that are to be copied, and letters before them that are shown: small models take a line with
# fewer for another.
CODE, CUE = 12, 24
# Texts of a study begin this many tokens apart besides the context, however many of them are said.
SAID = 128
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True)
class Task:
    """A context, what is said after it, and which of these tokens answer questions: [begin, end) each."""

    context: list[int]
    said: list[int]
    answers: tuple[tuple[int, int], ...] = ()

    def right(self, likeliest: np.ndarray) -> list[bool]:
        """Returns for each answer whether every token of it was likeliest, int[said]; the ones whose tokens were all
        said. A context's own first token is none of decoding's."""
        said = np.array(self.said[: len(likeliest)])
        same = likeliest == said
        return [bool(same[begin:end].all()) for begin, end in self.answers if begin > 0 and end <= len(said)]


def text(prompts: Prompts, number: int, context: int, said: int, apart: int | None = None) -> Task:
    """Returns a text and its own continuation. `apart`: tokens from one text's beginning to the next one's."""
    ids, rest = prompts.tokens(number, context, said, apart)
    return Task(list(ids), list(rest))


def needle(prompts: Prompts, number: int, context: int) -> Task:
    """Returns text with facts strewn evenly into it, and the facts asked for in another order."""
    tokens, random = _readable(prompts), np.random.default_rng([7, number])
    facts = [("".join(random.choice(_LETTERS, 7)), str(random.integers(10**5, 10**6))) for _ in range(NEEDLES)]
    ids = _strewn(prompts, 100 + number, context, [tokens.encode(FACT.format(*fact)) for fact in facts])
    asked = [(QUESTION.format(key), value, ".\n") for key, value in (facts[n] for n in random.permutation(NEEDLES))]
    return _asking(tokens, ids, asked)


def copy(prompts: Prompts, number: int, context: int) -> Task:
    """Returns text with lines of random letters strewn into it, and the beginning of each said again in another order,
    with its end as the answer."""
    tokens, random = _readable(prompts), np.random.default_rng([8, number])
    codes = ["".join(random.choice(_LETTERS, CUE + CODE)) for _ in range(NEEDLES)]
    ids = _strewn(prompts, 200 + number, context, [tokens.encode(f"\n{code}\n") for code in codes])
    asked = [(code[:CUE], code[CUE:], "\n") for code in (codes[n] for n in random.permutation(NEEDLES))]
    return _asking(tokens, ids, asked)


# By the name that a scenario has for it: of a text, the number of the sequence and the tokens of its context.
ASKING: dict[str, Callable[[Prompts, int, int], Task]] = {"needle": needle, "copy": copy}


def texts(prompts: Prompts, context: int, how_many: int, said: int = SAID) -> Iterator[Task]:
    """Returns the same contexts however many tokens are said, up to 128."""
    return (text(prompts, n, context, said, context + max(said, SAID)) for n in range(how_many))


def needles(prompts: Prompts, context: int, how_many: int) -> Iterator[Task]:
    return (needle(prompts, n, context) for n in range(how_many))


def _readable(prompts: Prompts) -> Tokens:
    if prompts.by is None:
        raise InputError("live.task: questions are asked in words, and this model has no tokenizer; say text")
    return prompts.by


def _strewn(prompts: Prompts, number: int, context: int, facts: list[list[int]]) -> list[int]:
    """Returns `context` token ids of a text with facts in it, at even distances."""
    room = context - sum(map(len, facts))
    if room < 0:
        what = f"{len(facts)} facts of {context - room:,} tokens together do not fit into {context:,}"
        raise InputError(f"workload.context: {what}; a longer context would do")
    ids = list(prompts.tokens(number, context, 0)[0])
    cuts = np.linspace(0, room, len(facts) + 2).astype(int).tolist()
    parts = [ids[a:b] for a, b in itertools.pairwise(cuts)]
    return [one for part, fact in zip(parts, [*facts, []], strict=True) for one in (*part, *fact)]


def _asking(tokens: Tokens, context: list[int], asked: list[tuple[str, str, str]]) -> Task:
    """Returns a task that says questions with their answers, and what stands behind each."""
    said, answers = tokens.encode("\n"), []
    for question, value, end in asked:
        said += tokens.encode(question)
        begin = len(said)
        said += tokens.encode(value)
        answers.append((begin, len(said)))
        said += tokens.encode(end)
    return Task(context, said, tuple(answers))
