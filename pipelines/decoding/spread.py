"""Windows of decoding that stand for a whole output, and what they add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvferry.pipelines.tally import Totals

Key = TypeVar("Key")

# Steps of a window. In its first half buffers become what they would be by then, without being counted.
_WINDOW_STEPS = 8


@dataclass(frozen=True)
class Window:
    """Holds steps of a window: ``skipped`` ones before it, `warming` ones, and the ``counted`` ones."""

    skipped: int
    warming: int
    counted: int


def windows_of(steps: int, carried_out: int) -> tuple[Window, ...]:
    """Windows of `carried_out` steps together, evenly over `steps`: what is counted lies in the middle of its share, so
    that a step whose time grows evenly with the output counts as the mean."""
    n = max(1, round(carried_out / _WINDOW_STEPS))
    found, done = list[Window](), 0
    for window in range(n):
        own = carried_out * (window + 1) // n - carried_out * window // n
        warming = own // 2
        counted = own - warming
        begin = round(steps * (window + 0.5) / n - counted / 2) - warming
        # Behind the window before, and early enough for the next ones.
        behind = carried_out - carried_out * window // n
        skipped = max(0, min(begin, steps - behind) - done)
        found.append(Window(skipped, warming, counted))
        done += skipped + own
    return tuple(found)


def tokens_of(windows: Sequence[Window]) -> list[int]:
    """Returns which tokens of an output, from 0 on, are there once windows were carried out: the first, and a step's
    each."""
    tokens = [0]
    for one in windows:
        begin = tokens[-1] + one.skipped + 1
        tokens += range(begin, begin + one.warming + one.counted)
    return tokens


@dataclass(frozen=True, kw_only=True)
class Told:
    """Holds what a run has come to at some moment: all that adds up, and what a flow counts."""

    totals: Totals
    counts: Mapping[str, float]


_NOTHING = Told(totals=Totals(now_s=0.0, busy_s={}, n_bytes={}, energy_j={}, storage_utilisation=0.0), counts={})


class Spread:
    """Adds up the counted parts of windows as if one followed the other, behind the prefill. Call `on_token` with how
    many tokens there are, and what the run has come to; `on_move` before layers move to another tier by themselves, and
    once they have, with what it has come to.

    A layer leaves memory once in an output, so what that takes is kept apart, in ``moves``: no window stands for it.
    """

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = windows
        # Tokens after which a counted part begins, and ends.
        self._begins, self._ends = set[int](), set[int]()
        tokens = 1
        for window in windows:
            self._begins.add(tokens + window.warming)
            tokens += window.warming + window.counted
            self._ends.add(tokens)
        self._begin: Told | None = None
        self._moving: Told | None = None
        self.moves = _NOTHING
        # Totals of prefill, and of it with all that was counted; when each token would have been there.
        self.prefill: Told | None = None
        self.end: Told | None = None
        self.token_times_s: list[float] = []
        self._last_s = 0.0

    def wants(self, tokens: int) -> bool:
        """Returns whether what the run has come to is asked for after `tokens`."""
        return tokens == 1 or tokens in self._begins or tokens in self._ends

    def on_token(self, tokens: int, now_s: float, told: Told | None) -> None:
        if tokens == 1:
            assert told is not None
            self.prefill = self.end = told
            self.token_times_s.append(now_s)
        elif self._begin is not None:
            self.token_times_s.append(self.token_times_s[-1] + now_s - self._last_s)
        self._last_s = now_s
        if told is not None and tokens in self._ends and self._begin is not None:
            assert self.end is not None
            self.end, self._begin = _later(self.end, self._begin, told), None
        if told is not None and tokens in self._begins:
            self._begin = told

    def on_move(self, told: Told) -> None:
        if self._moving is None:
            self._moving = told
            return
        before, self._moving = self._moving, None
        self.moves = _later(self.moves, before, told)
        self._last_s += told.totals.now_s - before.totals.now_s
        if self._begin is not None:
            self._begin = _later(self._begin, before, told)

    def with_moves(self, told: Told) -> Told:
        """Returns the same with what moved, once."""
        return _later(told, _NOTHING, self.moves)


def _later(base: Told, begin: Told, end: Told) -> Told:
    """`base`, and behind it what came between `begin` and `end`."""
    a, b, c = base.totals, begin.totals, end.totals
    now_s = a.now_s + c.now_s - b.now_s
    storing_s = [one.now_s * one.storage_utilisation for one in (a, b, c)]
    totals = Totals(
        now_s=now_s,
        busy_s=_sum(a.busy_s, b.busy_s, c.busy_s),
        n_bytes=_sum(a.n_bytes, b.n_bytes, c.n_bytes),
        energy_j=_sum(a.energy_j, b.energy_j, c.energy_j),
        storage_utilisation=(storing_s[0] + storing_s[2] - storing_s[1]) / now_s if now_s else 0.0,
    )
    return Told(totals=totals, counts=_sum(base.counts, begin.counts, end.counts))


def _sum(base: Mapping[Key, float], begin: Mapping[Key, float], end: Mapping[Key, float]) -> dict[Key, float]:
    return {key: base.get(key, 0.0) + end.get(key, 0.0) - begin.get(key, 0.0) for key in {**base, **end}}
