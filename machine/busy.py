"""When a resource worked: the raw material of utilisation, goodput and energy."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator


class Busy:
    """Disjoint intervals in ascending order; the last may still be open."""

    def __init__(self) -> None:
        self._starts_s = array("d")
        self._ends_s = array("d")
        self._open_s: float | None = None
        # Called with True when work begins, and with False when it ends.
        self.listener: Callable[[bool], None] | None = None

    def begin(self, now_s: float) -> None:
        """Busy from now on; nothing changes if it is busy already."""
        if self._open_s is None:
            self._open_s = now_s
            if self.listener is not None:
                self.listener(True)

    def end(self, now_s: float) -> None:
        assert self._open_s is not None
        if now_s > self._open_s:
            self._starts_s.append(self._open_s)
            self._ends_s.append(now_s)
        self._open_s = None
        if self.listener is not None:
            self.listener(False)

    @property
    def under_way(self) -> bool:
        """Whether it has begun and not ended."""
        return self._open_s is not None

    def add(self, start_s: float, end_s: float) -> None:
        """Busy from `start_s` to `end_s`, which is no earlier than what is known."""
        if self._ends_s and start_s <= self._ends_s[-1]:
            self._ends_s[-1] = max(self._ends_s[-1], end_s)
        elif end_s > start_s:
            self._starts_s.append(start_s)
            self._ends_s.append(end_s)

    def intervals(self, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """(start, end) of every busy interval, clipped to the two times."""
        for i in range(bisect_right(self._ends_s, from_s), len(self._ends_s)):
            if self._starts_s[i] >= until_s:
                return
            yield max(from_s, self._starts_s[i]), min(until_s, self._ends_s[i])
        if self._open_s is not None and self._open_s < until_s:
            yield max(from_s, self._open_s), until_s

    def any_since(self, from_s: float) -> bool:
        """Returns whether any of it lies behind `from_s`, found without going through it."""
        return self._open_s is not None or (bool(self._ends_s) and self._ends_s[-1] > from_s)

    def busy_s(self, from_s: float, until_s: float) -> float:
        if not self.any_since(from_s):
            return 0.0
        return math.fsum([end_s - start_s for start_s, end_s in self.intervals(from_s, until_s)])

    def utilisation(self, from_s: float, until_s: float) -> float:
        """The busy fraction of the time between; 0 if that time is empty."""
        return self.busy_s(from_s, until_s) / (until_s - from_s) if until_s > from_s else 0.0
