"""A rate that changes over time in steps, integrated exactly: what links and loaded processors replay."""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

OnEnd = Literal["loop", "hold", "end"]
# Pieces that an unrolled trace may have; more is a slip of a unit, and would fill the memory.
MAX_PIECES = 2_000_000
# The end of a trace that never ends: finite, as 0 * inf would be NaN, and longer than any replay.
_FOREVER_S = 1e18
# Relative rounding error of a sum: an amount this small is not waited for until an outage is over.
_ROUNDING = 2.0**-50


@dataclass(frozen=True, eq=False)
class RateTrace:
    """A piecewise-constant rate: `rates[i]` holds from `edges_s[i]` up to, not including, `edges_s[i + 1]`.

    Rates are not negative, per second: bytes/s for a link, a share 0..1 for a load. `on_end` says what follows the
    last edge: "loop" plays again from `loop_from_s` (one of the edges; 0 unless the trace begins with something that
    happens once), "hold" keeps the last rate for ever, "end" is rate 0 for ever. Times are seconds of replay; a
    negative or infinite time is a ValueError, as is a trace that breaks these rules.
    """

    edges_s: np.ndarray
    rates: np.ndarray
    on_end: OnEnd = "loop"
    loop_from_s: float = 0.0

    # For scalar look-ups: plain lists, on which bisect takes a fraction of numpy's time per call. Here every trace
    # loops: "hold" and "end" are one last piece of 1e18 s.
    _edges: list[float] = field(init=False, repr=False)
    _rates: list[float] = field(init=False, repr=False)
    _sums: list[float] = field(init=False, repr=False)  # amount up to each edge
    _loop_start: float = field(init=False, repr=False)
    _loop_sum: float = field(init=False, repr=False)  # amount before the loop
    _per_cycle: float = field(init=False, repr=False)  # amount of one loop

    def __post_init__(self) -> None:
        edges, rates = np.array(self.edges_s, dtype=float), np.array(self.rates, dtype=float)
        if edges.ndim != 1 or len(edges) < 2 or rates.shape != (len(edges) - 1,):
            raise ValueError(f"n rates need n + 1 edges, n at least 1; got shapes {rates.shape} and {edges.shape}")
        if edges[0] != 0 or not edges[-1] < _FOREVER_S or not (np.diff(edges) > 0).all():
            raise ValueError("edges must be finite, start at 0 and ascend strictly")
        if not np.isfinite(rates).all() or not (rates >= 0).all():
            raise ValueError("rates must be finite and not negative")
        if self.on_end not in ("loop", "hold", "end"):
            raise ValueError(f"on_end is {self.on_end!r}; it can be 'loop', 'hold' or 'end'")
        if self.loop_from_s not in edges[:-1]:
            raise ValueError(f"loop_from_s is {self.loop_from_s}, which is not an edge before the last")
        edges.flags.writeable = rates.flags.writeable = False
        played_edges, played_rates, loop_start = edges, rates, self.loop_from_s
        if self.on_end == "hold":
            played_edges = np.append(edges[:-1], _FOREVER_S)
        elif self.on_end == "end":
            played_edges, played_rates = np.append(edges, _FOREVER_S), np.append(rates, 0.0)
        if self.on_end != "loop":
            loop_start = float(played_edges[-2])
        # Summed in extended precision, so that a million pieces are as exact as one.
        sums = np.append(0, np.cumsum(played_rates.astype(np.longdouble) * np.diff(played_edges)))
        if not sums[-1] < np.finfo(float).max:
            raise ValueError("rate times duration is more than a number can hold")
        before_loop = sums[np.searchsorted(played_edges, loop_start)]
        self.__dict__.update(
            edges_s=edges,
            rates=rates,
            _edges=played_edges.tolist(),
            _rates=played_rates.tolist(),
            _sums=sums.astype(float).tolist(),
            _loop_start=loop_start,
            _loop_sum=float(before_loop),
            _per_cycle=float(sums[-1] - before_loop),
        )

    @classmethod
    def constant(cls, rate: float) -> "RateTrace":
        return cls(np.array([0.0, 1.0]), np.array([rate]), "hold")

    @classmethod
    def from_samples(cls, rates: ArrayLike, interval_s: float, on_end: OnEnd = "loop") -> "RateTrace":
        """Equally spaced samples, each holding for `interval_s`."""
        values = np.asarray(rates, dtype=float)
        return cls(np.arange(len(values) + 1) * interval_s, values, on_end)

    @property
    def duration_s(self) -> float:
        return float(self.edges_s[-1])

    def mean(self) -> float:
        """Mean rate from 0 to `duration_s`."""
        return self.amount(0, self.duration_s) / self.duration_s

    # --- asked once per transfer --------------------------------------------------------------------------------

    def rate_at(self, t_s: float) -> float:
        """The rate that holds from `t_s` on."""
        if not 0 <= t_s < math.inf:
            raise ValueError(f"time {t_s} is outside the replay")
        return self._rates[self._piece(self._fold(t_s)[1])]

    def amount(self, start_s: float, end_s: float) -> float:
        """The integral of the rate from `start_s` to `end_s`."""
        if not 0 <= start_s <= end_s < math.inf:
            raise ValueError(f"[{start_s}, {end_s}] is not a span of the replay")
        first_cycle, start_s = self._fold(start_s)
        last_cycle, end_s = self._fold(end_s)
        if first_cycle == last_cycle:
            return self._amount_within(start_s, end_s)
        whole_cycles = (last_cycle - first_cycle - 1) * self._per_cycle
        head = self._amount_within(start_s, self._edges[-1])
        return head + whole_cycles + self._amount_within(self._loop_start, end_s)

    def finish_s(self, start_s: float, amount: float) -> float:
        """The earliest time by which `amount` is delivered from `start_s` on; infinity if that never happens."""
        if not start_s >= 0:
            raise ValueError(f"time {start_s} is outside the replay")
        if start_s == math.inf:
            # Behind what never ends, nothing begins.
            return start_s
        if not 0 < amount < math.inf:
            if amount in (0, math.inf):
                return start_s if amount == 0 else math.inf
            raise ValueError(f"amount {amount} cannot be delivered")
        cycle, phase_s = self._fold(start_s)
        here = self._piece(phase_s)
        left_here = self._rates[here] * (self._edges[here + 1] - phase_s)
        if amount <= left_here:
            return start_s + amount / self._rates[here]
        amount -= left_here
        period_s = self._edges[-1] - self._loop_start
        left_in_cycle = self._sums[-1] - self._sums[here + 1]
        if amount <= left_in_cycle:
            return max(start_s, cycle * period_s + self._reach(self._sums[here + 1] + amount))
        amount -= left_in_cycle
        if not self._per_cycle:
            return math.inf
        cycles, amount = divmod(amount, self._per_cycle)
        if amount <= self._per_cycle * _ROUNDING:  # reached in the whole cycle before, which may end in an outage
            cycles, amount = cycles - 1, self._per_cycle
        return max(start_s, (cycle + 1 + cycles) * period_s + self._reach(self._loop_sum + amount))

    def finish_in_turn_s(self, starts_s: Iterable[float], amount: float, behind_s: float = 0.0) -> list[float]:
        """``finish_s`` of the same amount again and again, each from its start on or behind the one before; the first
        behind `behind_s`."""
        edges, rates, end_s, done_s = self._edges, self._rates, self._edges[-1], behind_s
        found: list[float] = []
        # The piece that is played: most often the same one for many.
        from_s, until_s, rate, took_s = math.inf, -math.inf, 0.0, 0.0
        for start_s in starts_s:
            start_s = start_s if start_s > done_s else done_s
            phase_s = start_s if start_s < end_s else self._fold(start_s)[1] if start_s < math.inf else math.inf
            if not from_s <= phase_s < until_s and 0 <= phase_s < end_s:
                here = self._piece(phase_s)
                from_s, until_s, rate = edges[here], edges[here + 1], rates[here]
                took_s = amount / rate if rate else math.inf
            if from_s <= phase_s < until_s and 0 < amount <= rate * (until_s - phase_s):
                done_s = start_s + took_s
            else:
                done_s = self.finish_s(start_s, amount)
            found.append(done_s)
        return found

    def _fold(self, t_s: float) -> tuple[float, float]:
        """(Number of loops completed before `t_s`, time within the trace at `t_s`)."""
        if t_s < self._edges[-1]:
            return 0.0, t_s
        cycle, phase_s = divmod(t_s - self._loop_start, self._edges[-1] - self._loop_start)
        return cycle, self._loop_start + phase_s

    def _piece(self, t_s: float) -> int:
        return min(bisect_right(self._edges, t_s), len(self._rates)) - 1

    def _amount_within(self, start_s: float, end_s: float) -> float:
        edges, rates, sums = self._edges, self._rates, self._sums
        i, j = self._piece(start_s), self._piece(end_s)
        if i == j:
            return rates[i] * (end_s - start_s)
        return rates[i] * (edges[i + 1] - start_s) + (sums[j] - sums[i + 1]) + rates[j] * (end_s - edges[j])

    def _reach(self, amount: float) -> float:
        """The earliest time within the trace by which `amount` > 0 was delivered since its start."""
        # The first edge whose sum suffices ends a piece that delivers something, so the division is safe.
        j = bisect_left(self._sums, min(amount, self._sums[-1]) * (1 - _ROUNDING))
        return self._edges[j - 1] + (amount - self._sums[j - 1]) / self._rates[j - 1]

    # --- other traces made from this one ------------------------------------------------------------------------

    def segments(self, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
        """(n + 1 edges, n rates) of the replay from `start_s` to `end_s`, loops unrolled.

        ValueError when that takes more than `MAX_PIECES` pieces.
        """
        if not 0 <= start_s < end_s < math.inf:
            raise ValueError(f"[{start_s}, {end_s}] is not a span of the replay")
        starts, rates = np.array(self._edges[:-1]), np.array(self._rates)
        if end_s > self._edges[-1]:
            looped = starts >= self._loop_start
            first, last = (max(1.0, self._fold(t_s)[0]) for t_s in (start_s, end_s))
            if (last - first + 1) * looped.sum() > MAX_PIECES:
                raise ValueError(f"{end_s - start_s:,.6g} s of this trace are more than {MAX_PIECES:,} pieces")
            cycles = np.arange(first, last + 1)
            period_s = self._edges[-1] - self._loop_start
            starts = np.append(starts, np.add.outer(cycles * period_s, starts[looped]))
            rates = np.append(rates, np.tile(rates[looped], len(cycles)))
        begin = int(np.searchsorted(starts, start_s, side="right")) - 1
        stop = int(np.searchsorted(starts, end_s, side="left"))
        return _without_empty(np.concatenate([[start_s], starts[begin + 1 : stop], [end_s]]), rates[begin:stop])

    def course(self, start_s: float, end_s: float, most_pieces: int) -> tuple[np.ndarray, np.ndarray]:
        """For drawing: ``segments``, or the means of `most_pieces` equal steps where there are more segments."""
        if self._pieces_within(start_s, end_s) <= most_pieces:
            return self.segments(start_s, end_s)
        edges = np.linspace(start_s, end_s, most_pieces + 1)
        moved = np.array([self.amount(a, b) for a, b in itertools.pairwise(edges.tolist())])
        return edges, moved / np.diff(edges)

    def _pieces_within(self, start_s: float, end_s: float) -> float:
        """How many pieces ``segments`` unrolls at most."""
        if end_s <= self._edges[-1]:
            return len(self._rates)
        first, last = (max(1.0, self._fold(t_s)[0]) for t_s in (start_s, end_s))
        looped = len(self._rates) - bisect_left(self._edges, self._loop_start)
        return len(self._rates) + (last - first + 1) * looped

    def scaled(self, factor: float) -> "RateTrace":
        """The same course with every rate multiplied by `factor`."""
        return RateTrace(self.edges_s, self.rates * factor, self.on_end, self.loop_from_s)

    def capped(self, most: float) -> "RateTrace":
        """The same course with no rate above `most`."""
        return RateTrace(self.edges_s, np.minimum(self.rates, most), self.on_end, self.loop_from_s)

    def complement(self) -> "RateTrace":
        """One minus each rate: the share that a load leaves over. ValueError when a rate is above 1."""
        return RateTrace(self.edges_s, 1 - self.rates, self.on_end, self.loop_from_s)

    def trimmed(self, start_s: float, end_s: float) -> "RateTrace":
        """The part between two times, moved to 0; `on_end` applies to its new end."""
        edges, rates = self.segments(start_s, end_s)
        return RateTrace(*_without_empty(edges - start_s, rates), self.on_end)

    def shifted(self, offset_s: float) -> "RateTrace":
        """The same replay, starting at `offset_s`."""
        offset_s = self._fold(offset_s)[1]
        end_s = self.duration_s
        if self.on_end == "loop" and offset_s > self.loop_from_s:
            end_s = offset_s + self.duration_s - self.loop_from_s
        elif offset_s >= end_s:
            end_s = offset_s + 1.0
        edges, rates = self.segments(offset_s, end_s)
        loop_from_s = max(0.0, self.loop_from_s - offset_s)
        return RateTrace(*_without_empty(edges - offset_s, rates), self.on_end, loop_from_s)

    def with_outages(self, outages: Iterable[tuple[float, float]]) -> "RateTrace":
        """Rate 0 between each (start_s, end_s) of the replay, once: a loop goes on undisturbed afterwards.

        However long an outage is, it is one piece. ValueError when what plays before and between the outages takes
        more than `MAX_PIECES` pieces.
        """
        pieces: list[tuple[np.ndarray, np.ndarray]] = []
        at_s = 0.0
        for start_s, end_s in sorted(outages):
            if not 0 <= start_s < end_s:
                raise ValueError(f"an outage from {start_s} to {end_s} is no span of the replay")
            if start_s > at_s:
                pieces.append(self.segments(at_s, start_s))
            if end_s > at_s:
                pieces.append((np.array([max(start_s, at_s), end_s]), np.zeros(1)))
                at_s = end_s
        if not pieces:
            return self
        loops = self.on_end == "loop"
        settled_s = max(at_s, self._loop_start)
        pieces.append(self.segments(at_s, settled_s + (_joint_period_s([self]) if loops else 1.0)))
        edges = np.concatenate([*(edges[:-1] for edges, _ in pieces), pieces[-1][0][-1:]])
        rates = np.concatenate([rates for _, rates in pieces])
        return RateTrace(edges, rates, "loop" if loops else "hold", settled_s if loops else 0.0)

    def times(self, other: "RateTrace") -> "RateTrace":
        """The product of two replays, such as a link's rate and the share of it that is free.

        Exact, but for two loops whose joint period would take more than `MAX_PIECES` pieces: their product
        starts again after as many whole periods of the longer one as fit (ValueError when none does).
        """
        both = (self, other)
        settled_s = max(t._loop_start for t in both)
        loops = [t for t in both if t.on_end == "loop"]
        until_s = settled_s + (_joint_period_s(loops) if loops else 1.0)
        (edges, rates), (other_edges, other_rates) = (t.segments(0, until_s) for t in both)
        joint = np.unique(np.concatenate([edges, other_edges, [settled_s]]))
        at = joint[:-1]
        product = (
            rates[np.searchsorted(edges, at, side="right") - 1]
            * other_rates[np.searchsorted(other_edges, at, side="right") - 1]
        )
        return RateTrace(joint, product, "loop" if loops else "hold", settled_s if loops else 0.0)


def _without_empty(edges: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop pieces without a width: far from 0, two edges may round to the same time."""
    keep = np.diff(edges) > 0
    return np.append(edges[:-1][keep], edges[-1]), rates[keep]


def _joint_period_s(loops: list[RateTrace]) -> float:
    periods_s = [t.duration_s - t.loop_from_s for t in loops]
    longest_s = max(periods_s)
    # Recorded periods are rounded: those less than a microsecond apart are taken as equal.
    a, b = (Fraction(p).limit_denominator(10**6) or Fraction(p) for p in (periods_s[0], periods_s[-1]))
    joint_s = math.lcm(a.numerator * b.denominator, b.numerator * a.denominator) / (a.denominator * b.denominator)
    # Half of the pieces, as the part before the loop needs some too.
    pieces_per_s = sum(len(t.rates) / p for t, p in zip(loops, periods_s, strict=True))
    fits = MAX_PIECES / 2 / pieces_per_s
    return min(joint_s, max(1, fits // longest_s) * longest_s)
