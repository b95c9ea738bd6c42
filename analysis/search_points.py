"""Gives a search its points: all of a small space, or what a sampler chooses. None comes twice."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Protocol

from kvferry.analysis.search_space import Space
from kvferry.analysis.search_spec import Constraint, SearchSpec
from kvferry.analysis.tried import Tried
from kvferry.scenarios.number_range import MOST_POINTS
from kvferry.specs.errors import MissingExtra
from kvferry.specs.node import Node

if TYPE_CHECKING:
    from optuna.trial import Trial

# Makes a point of its number and what was chosen for it.
Try = Callable[[int, Mapping[str, Node]], Tried]
# A sampler that says what was tried so often in a row is not asked again for this point.
_MOST_REPEATS = 20
# Points drawn at random of a space without end, once a sampler repeats itself.
_MOST_DRAWN = 200
# Names the constraint that a point without figures breaks, so that a sampler learns to avoid such points.
_HAS_FIGURES = "has figures"


class Points(Protocol):
    """Gives points that were not tried before, and hears what came of them."""

    def next(self, n: int, made: Try) -> list[Tried]:
        """Returns at most `n`; fewer, or none: no others are known."""
        ...

    def tell(self, one: Tried) -> None:
        """Hears of a point, in the order in which they came."""
        ...


def points_of(spec: SearchSpec, space: Space, constraints: Sequence[Constraint]) -> Points:
    """Returns every point of a space with no more of them than are to be tried, else a sampler's. Raises
    MissingExtra."""
    return EveryPoint(space) if is_whole(spec, space) else Sampled(spec, space, constraints)


def is_whole(spec: SearchSpec, space: Space) -> bool:
    """Returns whether all points of the space are tried."""
    return (size_of(space) or spec.points + 1) <= spec.points


def size_of(space: Space) -> int | None:
    """Returns how many points there are; None: more than can be counted out."""
    sizes = [part.size for part in space.values()]
    return None if None in sizes else prod(size for size in sizes if size is not None)


class EveryPoint:
    """Gives each point of a space with an end, in the order of its file, but for those without another effect."""

    def __init__(self, space: Space) -> None:
        keys = list(space)
        self._left = (
            dict(zip(keys, nodes, strict=True)) for nodes in product(*(one.every() for one in space.values()))
        )
        self._seen = _Seen()

    def next(self, n: int, made: Try) -> list[Tried]:
        return list(islice(filter(None, (self._seen.added(chosen, made) for chosen in self._left)), n))

    def tell(self, one: Tried) -> None:
        pass


class Sampled:
    """Gives what optuna's sampler chooses. Where that says what was tried, it is asked again, then chance decides."""

    def __init__(self, spec: SearchSpec, space: Space, constraints: Sequence[Constraint]) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingExtra("a search needs optuna; install it with: pip install '.[search]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._space, self._constraints = spec, space, constraints
        self._failed = optuna.trial.TrialState.FAIL
        with _quiet():
            sampler = {
                "tpe": lambda: optuna.samplers.TPESampler(seed=spec.seed, multivariate=True),
                "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=spec.seed, population_size=max(2, spec.at_once)),
                "random": lambda: optuna.samplers.RandomSampler(seed=spec.seed),
            }[spec.sampler]()
            directions = ["minimize" if objective.lower else "maximize" for objective in spec.objectives]
            self._study = optuna.create_study(directions=directions, sampler=sampler)
        self._seen = _Seen()
        self._others = _drawn(space, random.Random(spec.seed))
        self._trials: dict[int, Trial] = {}

    def next(self, n: int, made: Try) -> list[Tried]:
        found: list[Tried] = []
        with _quiet():
            while len(found) < n and (one := self._next(made)) is not None:
                found.append(one)
        return found

    def _next(self, made: Try) -> Tried | None:
        for _ in range(_MOST_REPEATS):
            if (one := self._asked(made)) is not None:
                return one
        for params in self._others:
            self._study.enqueue_trial(dict(params))
            if (one := self._asked(made)) is not None:
                return one
        return None

    def _asked(self, made: Try) -> Tried | None:
        trial = self._study.ask()
        one = self._seen.added({key: part.chosen(key, trial) for key, part in self._space.items()}, made)
        if one is None:
            self._study.tell(trial, state=self._failed)
        else:
            self._trials[one.number] = trial
        return one

    def tell(self, one: Tried) -> None:
        trial = self._trials.pop(one.number)
        values = [one.figures.get(objective.metric) for objective in self._spec.objectives]
        complete = [value for value in values if value is not None]
        is_run = len(complete) == len(values)
        with _quiet():
            # Where figures are missing, this alone counts: of values of a point that breaks a constraint, no sampler
            # learns.
            trial.set_constraint(_HAS_FIGURES, -1.0 if is_run else 1.0)
            for bound in self._constraints:
                figure = one.figures.get(bound.metric)
                trial.set_constraint(bound.text, 1.0 if figure is None else bound.excess(figure))
            self._study.tell(trial, complete if is_run else [0.0] * len(values))


class _Seen:
    """Makes points of what is chosen, and knows the ones before."""

    def __init__(self) -> None:
        self._whats: set[object] = set()

    def added(self, chosen: Mapping[str, Node], made: Try) -> Tried | None:
        """Returns the point, numbered; None: one that has the same effect was there before."""
        one = made(len(self._whats), chosen)
        if one.what in self._whats:
            return None
        self._whats.add(one.what)
        return one


def _drawn(space: Space, chance: random.Random) -> Iterator[Mapping[str, float]]:
    """Yields what a trial is given for its point: each point of a space with an end once, others at random."""
    keys = list(space)
    if (size_of(space) or MOST_POINTS + 1) <= MOST_POINTS:
        every = list(product(*(part.shares() for part in space.values())))
        chance.shuffle(every)
    else:
        every = [tuple(part.drawn(chance) for part in space.values()) for _ in range(_MOST_DRAWN)]
    yield from (dict(zip(keys, one, strict=True)) for one in every)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without optuna's warnings about what it calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
