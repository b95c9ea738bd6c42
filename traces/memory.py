"""How long a link remembers: parts of a normal score whose rates are as correlated as those of a recording."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

import numpy as np

from kvferry.traces.generate import Memory
from kvferry.traces.statistics import autocorrelation

# Correlation is fitted up to this lag, but at most a quarter of the trace, where its estimate still means something.
_LONGEST_LAG_S = 30.0
_LAGS = 40
# Where a sum over all lags of a recording is taken; straight lines between.
_NODES = 200
_POWERS = 24
# The search: times and shares to begin with, and how far its steps shrink.
_TIMES = 12
_SHARES = 10
_FINEST = 1e-3
# Times nearer to each other are one: minutes of a recording do not tell them apart.
_APART = 2.0

# Share and time of the faster part, then of the slower one.
Parts = tuple[float, float, float, float]


def memory_of(
    rates: np.ndarray, step_s: float, longest_s: float, step_correlation: float | None = None
) -> tuple[Memory, ...]:
    """At most two parts, with the autocorrelation that the rates have, fades included.

    A recording tells the correlation about its own mean, which is lower than the link's where the memory is long: what
    is compared is what a recording of this length would show. The lag of one step counts as much as all the others
    together; `step_correlation` replaces what the rates have there. No time is above `longest_s`.
    """
    most = max(1, min(len(rates) // 4, int(_LONGEST_LAG_S / step_s)))
    lags = np.unique(np.geomspace(1, most, _LAGS).round().astype(int))
    wanted = np.array([autocorrelation(rates, int(lag)) or 0.0 for lag in lags])
    if step_correlation is not None:
        wanted[0] = step_correlation
    bend = rate_correlations(np.sort(rates))

    def missed(parts: Parts) -> float:
        a, fast_s, b, slow_s = parts

        def correlations(lags: np.ndarray) -> np.ndarray:
            return bend(a * np.exp(-lags * step_s / fast_s) + b * np.exp(-lags * step_s / slow_s))

        errors = (seen_correlations(correlations, lags, len(rates)) - wanted) ** 2
        return float(errors[0] + errors.mean())

    return as_memory(_descended(min(_grid(step_s / 2, longest_s), key=missed), missed, step_s / 2, longest_s))


def as_memory(parts: Parts) -> tuple[Memory, ...]:
    """The parts that have a share, the faster first; one where their times are hardly apart."""
    a, a_s, b, b_s = parts
    if max(a_s, b_s) < _APART * min(a_s, b_s):
        a, a_s, b, b_s = a + b, (a * a_s + b * b_s) / max(a + b, _FINEST), 0.0, b_s
    shares = (round(a, 3), round(min(b, 1 - round(a, 3)), 3))
    found = [Memory(share=s, time_s=float(f"{t:.3g}")) for s, t in zip(shares, (a_s, b_s), strict=True) if s > 0]
    return tuple(sorted(found, key=lambda part: part.time_s))


def seen_correlations(correlations: Callable[[np.ndarray], np.ndarray], lags: np.ndarray, samples: int) -> np.ndarray:
    """What so many samples show at these lags about their own mean, to first order.

    The mean of the samples varies by v, the mean correlation of all pairs: of c they show (c - v) / (1 - v), and the
    less of it, the fewer pairs a lag leaves.
    """
    nodes, left, apart = _nodes(samples)
    pairs = left * correlations(nodes)
    # A sum over whole numbers is the integral and half of either end.
    total = float(np.sum((pairs[1:] + pairs[:-1]) / 2 * apart)) + (pairs[0] + pairs[-1]) / 2
    common = (1 + 2 * total) / samples
    return (1 - lags / samples) * (correlations(lags) - common) / (1 - common)


@lru_cache
def _nodes(samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lags at which an integral over all of them is taken, the share of pairs that each leaves, and their distances."""
    nodes = np.unique(np.geomspace(1, samples, _NODES).round().astype(int))
    return nodes, 1 - nodes / samples, np.diff(nodes)


def rate_correlations(ascending: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """From the correlation of two normal scores to that of the rates that they are mapped to by rank.

    The map is expanded in Hermite polynomials: corr(g(X), g(Y)) is the sum over k of c_k^2 rho^k, over that of c_k^2.
    """
    n = len(ascending)
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
    before, polynomial = np.zeros(n), np.ones(n)
    powers = []
    for k in range(1, _POWERS + 1):
        before, polynomial = polynomial, (scores * polynomial - math.sqrt(k - 1) * before) / math.sqrt(k)
        powers.append(float((ascending * polynomial).mean()) ** 2)
    grid = np.linspace(0, 1, 501)
    # What the cut-off leaves of the variance belongs to high powers.
    rest = max(0.0, float(ascending.var()) - sum(powers))
    of_rates = sum(power * grid**k for k, power in enumerate(powers, 1)) + rest * grid ** (2 * _POWERS)
    of_rates /= of_rates[-1]
    return lambda of_scores: np.interp(of_scores, grid, of_rates)


def _grid(shortest_s: float, longest_s: float) -> Iterator[Parts]:
    times_s = np.geomspace(shortest_s, max(2 * shortest_s, longest_s), _TIMES).tolist()
    for fast_s, slow_s in combinations(times_s, 2):
        for tenths in range(_SHARES + 1):
            slow = tenths / _SHARES
            for of_rest in (0.0, 0.5, 1.0):
                yield (1 - slow) * of_rest, fast_s, slow, slow_s


def _descended(parts: Parts, missed: Callable[[Parts], float], shortest_s: float, longest_s: float) -> Parts:
    """The lowest place that ever smaller steps from `parts` come to."""
    best, step = missed(parts), 1 / _SHARES
    while step > _FINEST:
        moved = min(_around(parts, step, shortest_s, max(2 * shortest_s, longest_s)), key=missed)
        found = missed(moved)
        if found < best:
            parts, best = moved, found
        else:
            step /= 2
    return parts


def _around(parts: Parts, step: float, shortest_s: float, longest_s: float) -> Iterator[Parts]:
    """A little more or less of a part, of one at the other's cost, and a little longer or shorter."""
    a, fast_s, b, slow_s = parts
    for h in (step, -step):
        for c, d in ((a + h, b), (a, b + h), (a + h, b - h)):
            if c >= 0 and d >= 0 and c + d <= 1:
                yield c, fast_s, d, slow_s
        # Times lie decades apart where shares lie tenths.
        longer = 10**h
        yield a, min(max(fast_s * longer, shortest_s), longest_s), b, slow_s
        yield a, fast_s, b, min(max(slow_s * longer, shortest_s), longest_s)
