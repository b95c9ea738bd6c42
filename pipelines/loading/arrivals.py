"""What came of a load, unit by unit: over which path, and what of it was of no use."""

from collections import Counter
from collections.abc import Sequence

from kvferry.pipelines.record import UnitPath
from kvferry.policies.loading.problem import LoadProblem
from kvferry.specs.errors import KvferryError, LinkDown


class Arrivals:
    """Counts units and bytes that came. `keep_paths`: and keeps the path of every unit that link or processor brought,
    with the times when it was asked for and when it was there."""

    def __init__(self, problem: LoadProblem, keep_paths: bool) -> None:
        self._place, self._per_head = problem.places, problem.coupling == "per_head"
        self.units_computed = 0
        self.units_streamed = 0
        self.units_read = 0
        # Key and value numbers that came, by the level of their encoding.
        self.values_by_level: Counter[int] = Counter()
        self.streamed_bytes = 0.0
        self.wasted_bytes = 0.0
        # Why the link carries nothing any more; None while it does.
        self.link_down: LinkDown | None = None
        # How many units arrived and could not be decoded or put in place, and why the first of them.
        self.units_unusable = 0
        self.unusable: KvferryError | None = None
        # Of those, the ones that had not been computed meanwhile. Asking for them again would bring the same.
        self.lost: set[int] = set()
        self.paths: list[UnitPath] | None = [] if keep_paths else None
        # When each unit was handed over: to the processor, and to the link.
        none_yet = [0.0] * problem.units if keep_paths else []
        self._asked_s = none_yet, none_yet.copy()

    def asked(self, units: Sequence[int], now_s: float, *, streamed: bool) -> None:
        if self.paths is not None:
            asked_s = self._asked_s[streamed]
            for unit in units:
                asked_s[unit] = now_s

    def came(self, unit: int, now_s: float, *, streamed: bool) -> None:
        if streamed:
            self.units_streamed += 1
        else:
            self.units_computed += 1
        if self.paths is not None:
            t, l, c = self._place[unit]
            head = c if self._per_head else None
            self.paths.append(UnitPath(t, l, head, streamed, self._asked_s[streamed][unit], now_s))
