"""How fast a path really gets on, as the load itself sees it."""

from math import exp


class Throughput:
    """A running mean of what is done per second while there is work: what was `expected`, forgotten over
    `memory_s`, and what has been seen since.

    Counting what arrives leaves nothing out: other requests' share, background load, outages, decompression.
    """

    def __init__(self, expected: float, memory_s: float, step_s: float = 0.05) -> None:
        self.per_s = expected
        self._memory_s, self._step_s = memory_s, step_s
        self._at_s: float | None = None
        self._done = 0.0
        self._busy = False

    def look(self, now_s: float, done: float, busy: bool) -> None:
        """`done` in total by now; `busy`: more is under way. A step counts when it began and ended busy."""
        if self._at_s is not None:
            if now_s - self._at_s < self._step_s:
                return
            if self._busy and busy:
                elapsed_s = now_s - self._at_s
                seen_per_s = (done - self._done) / elapsed_s
                self.per_s += (1 - exp(-elapsed_s / self._memory_s)) * (seen_per_s - self.per_s)
        self._at_s, self._done, self._busy = now_s, done, busy
