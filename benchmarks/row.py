"""What a benchmark yields, and the clock that most of them share."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure. `ceiling` is in the same unit: what could be reached at best, or is asked for."""

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    ceiling: float | None = None


def lower(name: str, value: float, unit: str, ceiling: float | None = None) -> Row:
    """A figure that should be small, as a time or an error."""
    return Row(name=name, value=value, unit=unit, better="lower", ceiling=ceiling)


def higher(name: str, value: float, unit: str, ceiling: float | None = None) -> Row:
    """A figure that should be large, as a rate."""
    return Row(name=name, value=value, unit=unit, better="higher", ceiling=ceiling)


def best_s(
    work: Callable[[], Any], *, rounds: int = 5, times: int = 1, clock: Callable[[], float] = perf_counter
) -> float:
    """Seconds per call, the best of some rounds of this many calls: other work on the machine only adds to them."""
    found = []
    for _ in range(rounds):
        gc.collect()
        began_s = clock()
        for _ in range(times):
            work()
        found.append((clock() - began_s) / times)
    return min(found)
