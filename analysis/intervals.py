"""Intervals of a run's figures: what it comes to where the things that it rests on are a little different, combined.

A thing that is not known exactly has a few samples, each as likely as the others; several such things have all
combinations. An interval holds eight of ten of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.analysis.figures import less_is_better
from kvferry.analysis.repeats import Metrics, Range
from kvferry.analysis.reproduction.left_out import LEVEL

# Chances below which the samples of a number lie that is not known: the outer two are the ends of its interval.
CHANCES = tuple(n / 10 for n in range(1, 10))
_TAIL = (1 - LEVEL) / 2
# In this share of samples a system has to beat another one for their order to be known.
SURE = 0.9


@dataclass(frozen=True)
class Effect:
    """Holds what figures come to with each sample of one thing, as logarithms of their ratio to the run's own.
    ``name`` is the thing's; systems that rest on the same thing have the same sample of it. A metric that is missing is
    not affected."""

    name: str
    deviations: Mapping[str, np.ndarray]


def effect_of_number(
    name: str,
    own: Metrics,
    less: Metrics,
    more: Metrics,
    half_width: Callable[[float], float],
    speaks_of: Callable[[str], bool],
) -> Effect:
    """The effect of a number on a logarithmic scale. `less` and `more`: the figures at both ends of its interval;
    `half_width`: of the interval that holds a share of it."""
    places = _places(half_width)
    found = {}
    for key, value in own.items():
        if speaks_of(key) and value > 0 and less.get(key, 0) > 0 and more.get(key, 0) > 0:
            below, above = np.log(less[key] / value), np.log(more[key] / value)
            if below or above:
                found[key] = np.where(places < 0, -places * below, places * above)
    return Effect(name, found)


def effect_of_choices(
    name: str, own: Metrics, choices: Mapping[str, Metrics], speaks_of: Callable[[str], bool]
) -> Effect:
    """The effect of one of several `choices` by name, each as likely as the others; the run's own is one of them."""
    found = {}
    for key, value in own.items():
        values = np.array([choices[one].get(key, 0.0) for one in sorted(choices)])
        if speaks_of(key) and (values > 0).all() and values.min() < values.max():
            found[key] = np.log(values / value)
    return Effect(name, found)


def effect_of_errors(name: str, half_widths: Mapping[str, Callable[[float], float]]) -> Effect:
    """The effect of errors that whole runs had, by metric."""
    return Effect(name, {key: half(LEVEL) * _places(half) for key, half in half_widths.items()})


def _places(half_width: Callable[[float], float]) -> np.ndarray:
    """Returns where the samples of a number lie, in half widths of its interval: -1 and 1 are its ends."""
    whole = half_width(LEVEL)
    return np.array([np.sign(p - 0.5) * half_width(round(abs(2 * p - 1), 9)) / whole for p in CHANCES])


def intervals_of(own: Metrics, effects: Sequence[Effect]) -> dict[str, Range]:
    """The interval of every metric that one of the effects moves."""
    keys = [key for key in own if any(key in effect.deviations for effect in effects)]
    return {key: _interval(own[key], [e.deviations[key] for e in effects if key in e.deviations]) for key in keys}


def _interval(own: float, deviations: Sequence[np.ndarray]) -> Range:
    total = np.zeros(())
    for one in deviations:
        total = np.add.outer(total, one)
    # Of n samples the k-th has the chance k / (n + 1): of nine, the least and the most are the ends.
    low, high = np.quantile(total, [_TAIL, 1 - _TAIL], method="weibull")
    return float(own * np.exp(low)), float(own * np.exp(high))


def beats(key: str, one: tuple[float, Sequence[Effect]], other: tuple[float, Sequence[Effect]]) -> float:
    """The share of samples in which one system has the better figure, ties counted as half. Each is its own figure, and
    the effects on it; an effect that both have has the same sample for both, the others have all combinations."""
    names = list(dict.fromkeys(effect.name for _, effects in (one, other) for effect in effects))
    values = []
    for own, effects in (one, other):
        by_name = {effect.name: effect.deviations[key] for effect in effects if key in effect.deviations}
        total = np.full((1,) * len(names), np.log(own))
        for n, name in enumerate(names):
            if name in by_name:
                shape = [1] * len(names)
                shape[n] = -1
                total = total + by_name[name].reshape(shape)
        values.append(total)
    ahead = values[1] - values[0] if less_is_better(key) else values[0] - values[1]
    return float(np.mean((ahead > 0) + 0.5 * (ahead == 0)))
