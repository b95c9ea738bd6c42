"""Work that a queue has ended: how long it took beside its nominal time."""

import math
from array import array
from bisect import bisect_left


class Ended:
    """Keeps the nominal and the actual duration of each piece of work, in order of ending."""

    def __init__(self) -> None:
        self._ends_s, self._nominals_s, self._actuals_s = array("d"), array("d"), array("d")

    def add(self, end_s: float, nominal_s: float, actual_s: float) -> None:
        """Counts work that has just ended."""
        self._ends_s.append(end_s)
        self._nominals_s.append(nominal_s)
        self._actuals_s.append(actual_s)

    def speed(self, from_s: float) -> float | None:
        """Returns nominal over actual duration of the work that ended from `from_s` on; None when none did."""
        first = bisect_left(self._ends_s, from_s)
        actual_s = math.fsum(self._actuals_s[first:])
        return math.fsum(self._nominals_s[first:]) / actual_s if actual_s else None
