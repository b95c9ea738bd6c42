"""A measured quantity with all its repetitions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """`at` says at which point, by feature (context, tokens, block_bytes ...); `values` has every repetition."""

    # What was measured: advance, decode_step, dispatch, random_read ...
    what: str
    unit: str
    values: tuple[float, ...]
    at: dict[str, float] = field(default_factory=dict)

    @property
    def typical(self) -> float:
        return typical(self.values)

    @property
    def spread(self) -> float:
        """The distance between the quartiles over the typical value."""
        low, high = np.quantile(self.values, [0.25, 0.75])
        return float((high - low) / self.typical) if self.typical else 0.0

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "at": self.at, "unit": self.unit, "values": list(self.values)}

    @classmethod
    def from_json(cls, entry: Any) -> "Measurement":
        """Raises ValueError, TypeError, KeyError or AttributeError for anything but a measurement."""
        values = tuple(float(value) for value in entry["values"])
        at = {str(feature): float(value) for feature, value in entry["at"].items()}
        if not values or not np.isfinite(values).all():
            raise ValueError("no finite values")
        return cls(what=str(entry["what"]), unit=str(entry["unit"]), values=values, at=at)


def typical(values: Sequence[float]) -> float:
    """The mean without the tenth at either end.

    Not the median: many machines change between two speeds, and a load that meets both takes their mean.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    left_out = len(ordered) // 10
    return float(ordered[left_out : len(ordered) - left_out].mean())


def merged(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Measurements of the same quantity, unit and point joined into one, as those of several passes."""
    found: dict[tuple[str, str, tuple[tuple[str, float], ...]], list[float]] = {}
    for m in measurements:
        found.setdefault((m.what, m.unit, tuple(sorted(m.at.items()))), []).extend(m.values)
    return [
        Measurement(what=what, unit=unit, values=tuple(values), at=dict(at))
        for (what, unit, at), values in found.items()
    ]


def only(measurements: Sequence[Measurement], what: str) -> list[Measurement]:
    """Measurements of one quantity, ordered by their points."""
    return sorted((m for m in measurements if m.what == what), key=lambda m: tuple(m.at.values()))


def repeated(
    sample: Callable[[], Sequence[float]], *, least: int, seconds: float, clock: Callable[[], float] = perf_counter
) -> tuple[float, ...]:
    """What `sample` gives, again and again: after one call to warm up, until there are `least` values, and for as many
    more as fit into `seconds` in all. The warm-up counts when it alone takes longer."""
    began_s = clock()
    values = list(sample())
    if clock() - began_s < seconds / 2:
        values = []
    while len(values) < least or clock() - began_s < seconds / 2:
        values += sample()
        if clock() - began_s > seconds and values:
            break
    return tuple(values)
