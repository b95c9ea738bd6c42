"""What a run's spans add up to, in bounded memory: for one device as for ten thousand."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvferry.machine.span import Span

# Spans that are kept for pictures and tables: several loads, or some hundred tokens of 32 layers. All are counted.
MOST_SPANS = 100_000
# Stretches of work that are kept apart per resource; of more, the oldest half becomes a sum.
_MOST_STRETCHES = 65_536

# By resource and label.
Sums = Mapping[tuple[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Everything that adds up over a run, from its beginning until ``now_s``."""

    now_s: float
    busy_s: Sums
    n_bytes: Sums
    energy_j: Mapping[str, float]
    storage_utilisation: float


class Occupied:
    """The time in which one resource was busy at all, from its spans in any order."""

    def __init__(self) -> None:
        # Disjoint stretches, ascending; `_settled_s` is the length of those before them.
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._settled_s = 0.0

    def add(self, start_s: float, end_s: float) -> None:
        starts, ends = self._starts, self._ends
        if not ends or start_s > ends[-1]:
            starts.append(start_s)
            ends.append(end_s)
            self._settle()
        elif start_s >= starts[-1]:
            if end_s > ends[-1]:
                ends[-1] = end_s
        else:
            # The stretches that the new one touches become one with it.
            first, behind = bisect_left(ends, start_s), bisect_right(starts, end_s)
            if first < behind:
                start_s, end_s = min(start_s, starts[first]), max(end_s, ends[behind - 1])
            starts[first:behind], ends[first:behind] = [start_s], [end_s]

    def _settle(self) -> None:
        if len(self._starts) > _MOST_STRETCHES:
            half = _MOST_STRETCHES // 2
            self._settled_s += float((np.array(self._ends[:half]) - np.array(self._starts[:half])).sum())
            del self._starts[:half], self._ends[:half]

    def share(self, start_s: float, end_s: float) -> float | None:
        """The share of [start_s, end_s] in which the resource was busy; None for an empty window. Work that was
        settled into a sum counts as inside: a window begins where the work does."""
        if end_s <= start_s:
            return None
        starts, ends = np.array(self._starts), np.array(self._ends)
        covered = np.clip(ends, start_s, end_s) - np.clip(starts, start_s, end_s)
        return min((self._settled_s + float(covered.sum())) / (end_s - start_s), 1.0)


class _Sum:
    """Of the spans of one resource and label. ``occupied``: of the resource."""

    __slots__ = ("busy_s", "n_bytes", "occupied")

    def __init__(self, occupied: Occupied) -> None:
        self.busy_s = self.n_bytes = 0.0
        self.occupied = occupied


class Tally:
    """Counts every span by resource and label, and keeps the first ones. Call it with each span as it ends."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # All of them, kept or not.
        self.count = 0
        self.occupied: defaultdict[str, Occupied] = defaultdict(Occupied)
        self._sums: dict[tuple[str, str], _Sum] = {}

    def __call__(self, span: Span) -> None:
        resource, label, start_s, end_s, n_bytes, _ = span
        of = self._sums.get((resource, label))
        if of is None:
            of = self._sums[resource, label] = _Sum(self.occupied[resource])
        of.busy_s += end_s - start_s
        of.n_bytes += n_bytes
        of.occupied.add(start_s, end_s)
        self.count += 1
        if self.count <= MOST_SPANS:
            self.spans.append(span)

    @property
    def busy_s(self) -> Sums:
        return {key: of.busy_s for key, of in self._sums.items()}

    @property
    def n_bytes(self) -> Sums:
        return {key: of.n_bytes for key, of in self._sums.items()}

    def bytes_of(self, resource: str, label: str | None = None) -> float:
        """Moved over a resource, with one label or any."""
        return sum(n for (name, of), n in self.n_bytes.items() if name == resource and label in (None, of))
