"""The least memory with which a question has an answer, where the memory that was granted gives none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Any

from kvferry.advice.composition import Composition
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial, tried
from kvferry.specs import human
from kvferry.specs.units import quantity

# Compositions that are tried with less memory: of those that do with all of it, the ones that take least.
_MOST_TRIED = 4


@dataclass(frozen=True)
class LeastMemory:
    """``n_bytes`` to grant to the composition of a trial; ``is_least``: it is known that less, in three digits, does
    not do."""

    n_bytes: float
    trial: Trial
    is_least: bool

    def __str__(self) -> str:
        size, name = human.size(self.n_bytes), self.trial.composition.name
        return (
            f"the least that is possible is {size} ({name})"
            if self.is_least
            else f"no more than {size} is needed ({name})"
        )


def least_memory(
    question: Question,
    trials: Sequence[Trial],
    settings: Callable[[Composition], Mapping[str, Any]],
    goes_on: Callable[[], bool],
) -> LeastMemory | None:
    """Returns the least memory with which one of the compositions that were tried keeps all other limits; None: no
    memory would do. What lies in memory depends on how much there is, so that runs with less say how little will do.
    `goes_on`: whether there is time for one more run. Raises KeyboardInterrupt."""
    freely, found = question.without(None), list[Trial]()
    for one in trials:
        # More memory changes nothing of what did not run for another reason, or keeps nothing there.
        if one.outcome == "out_of_memory" or (one.is_done and "memory" in one.composition.keep):
            if found and not goes_on():
                break
            found.append(tried(freely, one.composition, settings(one.composition)))
    kept = sorted(
        (one for one in found if one.is_done and not one.broken(question.limits)),
        key=lambda one: one.figures["memory_peak_bytes"],
    )
    if not kept:
        return None
    low_bytes, high_bytes, best = quantity(question.memory or "", "size"), _to_be_granted(question, kept[0]), kept[0]
    while (middle_bytes := in_digits((low_bytes + high_bytes) / 2, ceil)) < high_bytes:
        if not goes_on():
            return LeastMemory(high_bytes, best, False)
        if (leaner := _keeping(question, kept[:_MOST_TRIED], settings, middle_bytes)) is None:
            low_bytes = middle_bytes
        else:
            high_bytes, best = middle_bytes, leaner
    return LeastMemory(high_bytes, best, True)


def _keeping(
    question: Question, ones: Sequence[Trial], settings: Callable[[Composition], Mapping[str, Any]], n_bytes: float
) -> Trial | None:
    """The first of some trials that keeps the limits with so much memory."""
    granted = replace(question, memory=f"{n_bytes:.0f} B")
    runs = (tried(granted, one.composition, settings(one.composition)) for one in ones)
    return next((one for one in runs if one.is_done and not one.broken(question.limits)), None)


def _to_be_granted(question: Question, one: Trial) -> float:
    """The memory that a composition has to be granted, of which a share is kept free."""
    return in_digits(one.figures["memory_peak_bytes"] / (1 - question.device.memory.margin_share), ceil)


def in_digits(figure: float, to: Callable[[float], int]) -> float:
    """Returns a figure in three digits, up or down."""
    step = 10.0 ** (floor(log10(figure)) - 2)
    return to(figure / step) * step
