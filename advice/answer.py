"""An answer: what was chosen, what it came to, and what its results say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.specs import human

RUNNERS_UP = 3
# Figures that are nearer to each other than this are equal to a reader.
EQUAL = 0.001
# Compositions that are nearer to each other than this are as good as each other.
AS_GOOD = 0.01
FIGURES = {
    "answer_s": "whole answer",
    "ttft_s": "TTFT",
    "ttft_p95_s": "p95",
    "tpot_s": "decoding",
    "energy_j": "energy/answer",
    "memory_peak_bytes": "memory",
}


@dataclass(frozen=True)
class Statement:
    """Holds what results say under one heading. ``key``: its letter and name; ``facts``: the same as plain values."""

    key: str
    title: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answer:
    """``best``: the trial that was chosen; ``ranked``: all that keep the limits, best first; ``statements``: what their
    results say; ``tried``: how many compositions were run, and how many over all turns; ``coarse``: over few turns
    alone; ``judged_turns``: over how many the best was run, and how many the use has; ``cut_short``: of all that it
    might have run, more would have been tried with more time; ``interrupted``: by Ctrl-C or SIGTERM; ``ended_by``: the
    signal's number, 0 for none."""

    question: Question
    best: Trial
    ranked: Sequence[Trial]
    statements: Sequence[Statement] = ()
    tried: tuple[int, int] = (0, 0)
    coarse: bool = False
    judged_turns: tuple[int, int] = (0, 0)
    cut_short: bool = False
    interrupted: str | None = None
    ended_by: int = 0
    processor_s: Mapping[str, float] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def runners_up(self) -> list[Trial]:
        return runners_up(self.ranked, self.question.use.spec.best)

    @property
    def how_many(self) -> str:
        """Returns in words how many compositions were run."""
        tried, whole = self.tried
        over = "all" if whole == tried else f"{whole} of them" if whole else "none of them"
        if not self.cut_short:
            return f"{tried} compositions were run, {over} over all turns of the use"
        space = human.count(self.question.space.number)
        return f"{tried} compositions of {space} were run, {over} over all turns of the use; then the time was over"

    def to_json(self) -> str:
        """What ``kvferry advise --json`` prints."""
        found = {
            "use": self.question.use.spec.name,
            "question": self.question.identity,
            "composition": self.best.composition.name,
            "settings": self.best.composition.settings,
            "figures": {key: self.best.figures[key] for key in FIGURES if key in self.best.figures},
            "runners_up": [
                {
                    "composition": one.composition.name,
                    "settings": one.composition.settings,
                    "figures": {k: one.figures[k] for k in FIGURES if k in one.figures},
                }
                for one in self.runners_up
            ],
            "statements": {
                one.key: {"title": one.title, "said": list(one.lines), **one.facts} for one in self.statements
            },
            "tried": self.tried[0],
            "tried_over_all_turns": self.tried[1],
            "coarse": self.coarse,
            "judged": {
                "turns": self.judged_turns[0],
                "turns_of_use": self.judged_turns[1],
                "known_over_all": self.judged_turns[0] == self.judged_turns[1],
            },
            "cut_short": self.cut_short,
            "interrupted": self.interrupted,
        }
        return json.dumps(found, indent=2, sort_keys=False) + "\n"


def runners_up(ranked: Sequence[Trial], metric: str) -> list[Trial]:
    """Returns the next compositions that keep the limits and give up no more, each another one in what it loads,
    decodes or keeps with, and each with another result."""
    return others_than(ranked[:1], ranked[1:], metric)[:RUNNERS_UP]


def others_than(shown: Sequence[Trial], ones: Sequence[Trial], metric: str) -> list[Trial]:
    """Returns the trials that give up no more than the first that is shown, each with another result than all that is
    shown and than those before it."""
    found: list[Trial] = []
    for one in ones:
        values = [other.figures[metric] for other in (*shown, *found)]
        if all(abs(one.figures[metric] / value - 1) > AS_GOOD for value in values) and not _gives_up(one, shown[0]):
            found.append(one)
    return found


def missed(question: Question, one: Trial) -> str:
    """Names the limits that a trial misses, as options."""
    return " and ".join(f"--{limit.spelled}" for limit in one.broken(question.limits))


def giving_up(ranked: Sequence[Trial], metric: str) -> list[Trial]:
    """Returns the best composition of each kind that gives up more than the first, if it is clearly better."""
    best: dict[str, Trial] = {}
    for one in ranked:
        if _gives_up(one, ranked[0]) and one.figures[metric] < (1 - AS_GOOD) * ranked[0].figures[metric]:
            best[one.composition.loss] = min(best.get(one.composition.loss, one), one, key=lambda t: t.figures[metric])
    return list(best.values())


def _gives_up(one: Trial, than: Trial) -> bool:
    return one.composition.given_up > than.composition.given_up


def not_over_all(judged: tuple[int, int], too_long: bool = False) -> str:
    """Says over how many turns of how many something was judged; "" where it was over all. `too_long`: it is known not
    to hold the longest."""
    turns, of = judged
    if turns == of:
        return ""
    return f"judged over {turns} of {of} turns, {'the longest does not fit' if too_long else 'not known over all'}"


def more(ratio: float) -> str:
    """How much more a figure is than another one: "+12 %", "3.2 times", "the same"."""
    if abs(ratio - 1) <= EQUAL:
        return "the same"
    return f"{ratio:.3g} times" if ratio >= 2 else f"{100 * (ratio - 1):+.3g} %"


def shown(metric: str, figure: float) -> str:
    """A figure as people read it: rates in place of times per token."""
    if metric != "tpot_s":
        return human.of_unit(metric)(figure)
    rate = 1 / figure
    return f"{rate:,.0f} tokens/s" if rate >= 1000 else f"{rate:.3g} tokens/s"
