"""A rate that changes over time in steps and loops for ever, integrated exactly."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

# Pieces that an unrolled trace may have; more is a slip of a unit, and would fill the memory.
MAX_PIECES = 2_000_000
# Relative rounding error of a sum: an amount this small is not waited for until an outage is over.
_ROUNDING = 2.0**-50


class Replay:
    """`rates[i]` holds from `edges[i]` on. Behind the last edge the replay goes on from `loop_start_s`, one of them.

    Plain lists, on which bisect takes a fraction of numpy's time per call.
    """

    loop_start_s: float
    _edges: list[float]
    _rates: list[float]
    _sums: list[float]  # amount up to each edge
    _loop_sum: float  # amount before the loop
    _per_cycle: float  # amount of one loop

    def __init__(self, edges: np.ndarray, rates: np.ndarray, loop_start_s: float) -> None:
        # Summed in extended precision, so that a million pieces are as exact as one.
        sums = np.append(0, np.cumsum(rates.astype(np.longdouble) * np.diff(edges)))
        if not sums[-1] < np.finfo(float).max:
            raise ValueError("rate times duration is more than a number can hold")
        before_loop = sums[np.searchsorted(edges, loop_start_s)]
        # A trace is frozen.
        self.__dict__.update(
            loop_start_s=loop_start_s,
            _edges=edges.tolist(),
            _rates=rates.tolist(),
            _sums=sums.astype(float).tolist(),
            _loop_sum=float(before_loop),
            _per_cycle=float(sums[-1] - before_loop),
        )

    def rate_at(self, t_s: float) -> float:
        """The rate that holds from `t_s` on."""
        if not 0 <= t_s < math.inf:
            raise ValueError(f"time {t_s} is outside the replay")
        return self._rates[self._piece(self.fold(t_s)[1])]

    def amount(self, start_s: float, end_s: float) -> float:
        """The integral of the rate from `start_s` to `end_s`."""
        if not 0 <= start_s <= end_s < math.inf:
            raise ValueError(f"[{start_s}, {end_s}] is not a span of the replay")
        first_cycle, start_s = self.fold(start_s)
        last_cycle, end_s = self.fold(end_s)
        if first_cycle == last_cycle:
            return self._amount_within(start_s, end_s)
        whole_cycles = (last_cycle - first_cycle - 1) * self._per_cycle
        head = self._amount_within(start_s, self._edges[-1])
        return head + whole_cycles + self._amount_within(self.loop_start_s, end_s)

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
        cycle, phase_s = self.fold(start_s)
        here = self._piece(phase_s)
        left_here = self._rates[here] * (self._edges[here + 1] - phase_s)
        if amount <= left_here:
            return start_s + amount / self._rates[here]
        amount -= left_here
        period_s = self._edges[-1] - self.loop_start_s
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
            phase_s = start_s if start_s < end_s else self.fold(start_s)[1] if start_s < math.inf else math.inf
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

    def fold(self, t_s: float) -> tuple[float, float]:
        """(Number of loops completed before `t_s`, time within the trace at `t_s`)."""
        if t_s < self._edges[-1]:
            return 0.0, t_s
        cycle, phase_s = divmod(t_s - self.loop_start_s, self._edges[-1] - self.loop_start_s)
        return cycle, self.loop_start_s + phase_s

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

    def segments(self, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
        """(n + 1 edges, n rates) of the replay from `start_s` to `end_s`, loops unrolled.

        ValueError when that takes more than `MAX_PIECES` pieces.
        """
        if not 0 <= start_s < end_s < math.inf:
            raise ValueError(f"[{start_s}, {end_s}] is not a span of the replay")
        starts, rates = np.array(self._edges[:-1]), np.array(self._rates)
        if end_s > self._edges[-1]:
            looped = starts >= self.loop_start_s
            first, last = (max(1.0, self.fold(t_s)[0]) for t_s in (start_s, end_s))
            if (last - first + 1) * looped.sum() > MAX_PIECES:
                raise ValueError(f"{end_s - start_s:,.6g} s of this trace are more than {MAX_PIECES:,} pieces")
            cycles = np.arange(first, last + 1)
            period_s = self._edges[-1] - self.loop_start_s
            starts = np.append(starts, np.add.outer(cycles * period_s, starts[looped]))
            rates = np.append(rates, np.tile(rates[looped], len(cycles)))
        begin = int(np.searchsorted(starts, start_s, side="right")) - 1
        stop = int(np.searchsorted(starts, end_s, side="left"))
        return without_empty(np.concatenate([[start_s], starts[begin + 1 : stop], [end_s]]), rates[begin:stop])

    def pieces_within(self, start_s: float, end_s: float) -> float:
        """How many pieces ``segments`` unrolls at most."""
        if end_s <= self._edges[-1]:
            return len(self._rates)
        first, last = (max(1.0, self.fold(t_s)[0]) for t_s in (start_s, end_s))
        looped = len(self._rates) - bisect_left(self._edges, self.loop_start_s)
        return len(self._rates) + (last - first + 1) * looped


def without_empty(edges: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop pieces without a width: far from 0, two edges may round to the same time."""
    keep = np.diff(edges) > 0
    return np.append(edges[:-1][keep], edges[-1]), rates[keep]
