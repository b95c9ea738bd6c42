"""The observed rate of a path, from the progress of the load itself."""

from math import exp


class Throughput:
    """A running mean of the work done per second while there is work. It starts at the `expected` rate, which fades
    over `memory_s` as observations come in.

    It counts arrivals, so it includes the share of other requests, background load, outages and decompression.
    """

    def __init__(self, expected: float, memory_s: float, step_s: float = 0.05) -> None:
        self.per_s = expected
        self._memory_s, self._step_s = memory_s, step_s
        self._at_s: float | None = None
        self._done = 0.0
        self._busy = False

    def look(self, now_s: float, done: float, busy: bool) -> None:
        """Update with the total `done` by now; `busy`: more is under way. A step counts if it began and ended busy."""
        if self._at_s is not None:
            if now_s - self._at_s < self._step_s:
                return
            if self._busy and busy:
                elapsed_s = now_s - self._at_s
                seen_per_s = (done - self._done) / elapsed_s
                self.per_s += (1 - exp(-elapsed_s / self._memory_s)) * (seen_per_s - self.per_s)
        self._at_s, self._done, self._busy = now_s, done, busy
