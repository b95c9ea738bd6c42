"""The units of an order that can be computed now."""

from collections.abc import Iterable
from heapq import heappop, heappush

from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.ready import Ready


class Computable:
    """Returns the first of them, each once; it comes back when it becomes computable again."""

    def __init__(self, problem: LoadProblem, order: Iterable[int] = ()) -> None:
        self._ready = Ready(problem)
        self._place = {unit: place for place, unit in enumerate(order)}
        # By place; another path may have taken some since.
        self._waiting: list[tuple[int, int]] = []

    def follow(self, order: Iterable[int], progress: LoadProgress) -> None:
        """Go on in another order."""
        self._place = {unit: place for place, unit in enumerate(order)}
        self._waiting = [(place, unit) for unit, place in self._place.items() if progress.computable(unit)]

    def look(self, progress: LoadProgress) -> None:
        """Add what has become computable."""
        for unit in self._ready.news(progress):
            if unit in self._place:
                heappush(self._waiting, (self._place[unit], unit))

    def first(self, progress: LoadProgress) -> int | None:
        while self._waiting:
            unit = heappop(self._waiting)[1]
            if progress.absent(unit) and progress.computable(unit):
                return unit
        return None
