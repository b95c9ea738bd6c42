"""Which trials come first: the figure of a use decides, and where it is equal, what else a user would ask for."""

from collections.abc import Callable, Sequence
from math import inf

from kvferry.advice.answer import EQUAL
from kvferry.advice.quality import is_lossless
from kvferry.advice.question import Question
from kvferry.advice.today import an_engine_has
from kvferry.advice.trial import Trial

# Of trials with an equal figure the one is preferred that is better in these, in this order.
_OTHER_FIGURES = ("answer_s", "ttft_s", "tpot_s")


def in_order(
    question: Question, ones: Sequence[Trial], within: float = EQUAL, *, any_loss: bool = False
) -> list[Trial]:
    """Returns trials, the best first: what gives up less, unless `any_loss` or the question has it otherwise; then by
    the figure that the use is judged by. Figures that are within a share of the least are equal: then comes what loses
    nothing, what has the better other figures, what an engine has, what has fewer parts, and what was tried first."""
    free = any_loss or question.any_quality
    return _ordered(
        list(ones),
        (
            lambda one: 0 if free else one.composition.given_up,
            _figure(question.use.spec.best),
            lambda one: one.composition.given_up,
            lambda one: 0 if is_lossless(one) else 1,
            *(_figure(key) for key in _OTHER_FIGURES),
            lambda one: 0 if an_engine_has(question, one.composition) else 1,
            lambda one: one.composition.unusual_parts,
        ),
        within,
    )


def _figure(key: str) -> Callable[[Trial], float]:
    return lambda one: one.figures.get(key, inf)


def _ordered(ones: list[Trial], by: Sequence[Callable[[Trial], float]], within: float) -> list[Trial]:
    """Sorts by the first of several values, and those that are equal to the least of the rest by the next one."""
    if len(ones) < 2 or not by:
        return ones
    value, *others = by
    left, found = sorted(enumerate(map(value, ones)), key=lambda pair: pair[1]), list[Trial]()
    while left:
        most = left[0][1] * (1 + within)
        equal = sorted(n for n, own in left if own <= most)
        found += _ordered([ones[n] for n in equal], others, within)
        left = left[len(equal) :]
    return found
