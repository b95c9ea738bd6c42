"""Units that wait, the one with the highest score first, while their scores change."""

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

# The score of chunks that cost nothing: they go first, and sums stay finite.
LEAST_S = 1e-12


class ScoredUnits:
    """One of the queues Q_c and Q_s. ``takes_s`` is how long its path takes for each unit; a unit's own score is
    ``weight`` over that.

    A heap of (negated score, unit), ties to the smaller unit. A changed score is recorded and pushed again; an entry
    that differs from the record is stale, and dropped when it reaches the top.
    """

    def __init__(self, takes_s: np.ndarray, weight: float) -> None:
        self._takes_s: list[float] = takes_s.tolist()
        self._own: list[float] = (weight / np.maximum(takes_s, LEAST_S)).tolist()
        # A unit's entry in the heap, None while it is not in the queue.
        self.entry: list[float | None] = [None] * len(self._own)
        self._heap: list[tuple[float, int]] = []

    def put(self, unit: int, gain: float, above: float = 0.0) -> None:
        """Score a unit by itself and by what loading it makes ready: a `gain` in its row, and the unit `above` it."""
        entry = -self._own[unit] - gain - above
        if entry != self.entry[unit]:
            self.entry[unit] = entry
            heappush(self._heap, (entry, unit))

    def within(self, budget_s: float) -> Iterator[int]:
        """Take units from the top until the budget is used up; those that are put in meanwhile are among them."""
        spent_s = 0.0
        while self._heap and spent_s < budget_s:
            entry, unit = heappop(self._heap)
            if entry == self.entry[unit]:
                yield unit
                spent_s += self._takes_s[unit]
