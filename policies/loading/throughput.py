"""The rate of a path, as a load sees it."""

from math import exp

# How long a rate is looked at before it counts.
_STEP_S = 0.05


class Throughput:
    """A running mean of the work done per second while there is work. It starts at the `expected` rate, which fades
    over `memory_s` as observations come in. It is not taken for less than `least_per_s`: an outage is assumed to end.

    It counts arrivals, so it includes the share of other requests, background load, outages and decompression.
    """

    def __init__(self, expected: float, memory_s: float, least_per_s: float) -> None:
        self.least_per_s = least_per_s
        self._seen_per_s, self._memory_s = expected, memory_s
        self._at_s: float | None = None
        self._done = 0.0
        self._busy = False

    @property
    def per_s(self) -> float:
        return max(self._seen_per_s, self.least_per_s)

    def due(self, now_s: float) -> bool:
        """Whether a step is over, so that a look changes something."""
        return self._at_s is None or now_s - self._at_s >= _STEP_S

    def look(self, now_s: float, done: float, busy: bool) -> None:
        """Update with the total `done` by now; `busy`: more is under way. A step counts if it began and ended busy."""
        if not self.due(now_s):
            return
        if self._at_s is not None and self._busy and busy:
            elapsed_s = now_s - self._at_s
            seen_per_s = (done - self._done) / elapsed_s
            self._seen_per_s += (1 - exp(-elapsed_s / self._memory_s)) * (seen_per_s - self._seen_per_s)
        self._at_s, self._done, self._busy = now_s, done, busy
