"""How warm a device became, and what that cost it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Warmth:
    """A device's temperature whenever its governor looked at it, and the clock from then on, a share of the full one;
    the last time is that of the end. Times are on the run's clock."""

    times_s: tuple[float, ...]
    temperatures_c: tuple[float, ...]
    clocks: tuple[float, ...]

    @property
    def first_throttled_s(self) -> float | None:
        """When the clock was first below the full one; None: never."""
        return next((start_s for start_s, _, clock in self._lasting if clock < 1), None)

    @property
    def throttled_s(self) -> float:
        """How long the clock was below the full one."""
        return sum(lasting_s for _, lasting_s, clock in self._lasting if clock < 1)

    @property
    def least_clock(self) -> float:
        return min((clock for _, _, clock in self._lasting), default=1.0)

    def between(self, start_s: float, end_s: float) -> "Warmth":
        """What happened in this time, on a clock that begins with it."""
        first = max(0, bisect_right(self.times_s, start_s) - 1)
        behind = bisect_left(self.times_s, end_s) + 1
        times_s = (min(max(time_s, start_s), end_s) - start_s for time_s in self.times_s[first:behind])
        return Warmth(tuple(times_s), self.temperatures_c[first:behind], self.clocks[first:behind])

    @property
    def _lasting(self) -> Iterator[tuple[float, float, float]]:
        """When each clock began, how long it lasted, and what it was."""
        return (
            (start_s, end_s - start_s, clock)
            for start_s, end_s, clock in zip(self.times_s, self.times_s[1:], self.clocks, strict=False)
            if end_s > start_s
        )
