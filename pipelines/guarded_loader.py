"""A loader of the user's own, whose answers are looked at before they are carried out."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from kvferry.policies.loading.loader import Compute, LinkWindow, Loader, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress

# Called with the method of the loader and what is wrong with its answer.
Refuse = Callable[[str, str], NoReturn]


class GuardedLoader:
    """A Loader. An answer that cannot be carried out, or that brings nothing further, is refused."""

    def __init__(self, loader: Loader, refuse: Refuse) -> None:
        self._loader, self._refuse = loader, refuse
        self._window: LinkWindow | None = None

    @property
    def window(self) -> LinkWindow:
        window: Any = self._loader.window
        if self._window is not None and window is self._window:
            return self._window
        if not isinstance(window, LinkWindow):
            self._refuse("window", f"{window!r:.60}; a LinkWindow would do")
        if not (0 <= window.times < math.inf and 0 <= window.ahead_s < math.inf):
            self._refuse("window", f"{window!r:.60}; finite times and ahead_s, not below 0, would do")
        self._window = window
        return window

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._loader.start(problem, facts)

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        wanted = self._loader.next_compute(progress, facts)
        if wanted is None:
            return None
        if not isinstance(wanted, Compute):
            self._refuse("next_compute", f"{wanted!r:.60}; Compute((unit, ...)) or None would do")
        self._check_units("next_compute", wanted.units, progress)
        # Of several, some may have come in the meantime; the first that has not is computed now.
        for unit in wanted.units:
            if progress.computable(unit):
                return wanted
            if not (progress.present[unit] or progress.computing[unit]):
                what = f"unit {unit}, which cannot be computed yet; one for which progress.computable is true would do"
                self._refuse("next_compute", what)
        first = wanted.units[0]
        there = "is there already" if progress.present[first] else "the processor has already"
        return self._refuse("next_compute", f"unit {first}, which {there}; None would do")

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        wanted = self._loader.next_stream(progress, facts)
        if wanted is None:
            return None
        if not isinstance(wanted, Stream):
            self._refuse("next_stream", f"{wanted!r:.60}; Stream((unit, ...)) or None would do")
        self._check_units("next_stream", wanted.units, progress)
        levels = len(progress.problem.level_scale)
        level: Any = wanted.level
        if not _whole(level) or not 0 <= level < levels:
            self._refuse("next_stream", f"level {level!r:.60}; the encoding has 0 to {levels - 1}")
        for unit in wanted.units:
            if progress.present[unit] or progress.streaming[unit]:
                there = "is there already" if progress.present[unit] else "is on its way already"
                self._refuse("next_stream", f"unit {unit}, which {there}; one that is absent would do")
        return wanted

    def _check_units(self, method: str, units: Any, progress: LoadProgress) -> None:
        if not isinstance(units, tuple) or not units:
            self._refuse(method, f"the units {units!r:.60}; a tuple of one at least, or None in its place, would do")
        most = progress.problem.units - 1
        for unit in units:
            if not _whole(unit) or not 0 <= unit <= most:
                self._refuse(method, f"unit {unit!r:.60}; it is none of 0 to {most}")
        if len(units) > 1 and len(set(units)) < len(units):
            again = next(unit for at, unit in enumerate(units) if unit in units[:at])
            self._refuse(method, f"unit {again} twice; once would do")


def _whole(found: Any) -> bool:
    return type(found) is int or isinstance(found, np.integer)
