"""Three paths for a unit of KV: computed, streamed from the cloud, or read where an earlier turn left it.

With two paths the best divisions of a problem lie on one line, whatever the rates (``bound.py``). With three they lie
on a surface, which cutting planes explore: prices of the paths give the cheapest division; the divisions found so far
say which prices to try next.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kvferry.policies.loading.bound import ROUNDING, column_labels, first_enough_s
from kvferry.policies.loading.plan import Stage, by_storage, ordered_stage
from kvferry.policies.loading.problem import LoadProblem

# Cutting planes end when the bound is known this closely, or after this many.
_CLOSE, _MOST_CUTS = 1e-6, 200
# What is nothing has this logarithm, at least.
_LEAST = 1e-300


class Divisions:
    """The divisions of a problem among processor, link and storage, found as prices ask for them.

    ``usage`` [K, 3]: what each asks of the paths: nominal seconds, bytes, bytes. It depends on the problem alone, so
    divisions found at some rates serve at all others.
    """

    def __init__(self, problem: LoadProblem) -> None:
        self._amounts = (problem.compute_s, problem.stream_bytes, problem.stored_bytes)
        self.usage = np.empty((0, 3))

    def cheapest(self, prices: np.ndarray) -> float:
        """The cost of the cheapest division at ``prices`` [3], each per unit of ``usage``, which it is added to.

        Each column is computed to its own best depth: dependencies between tokens are left out.
        """
        work, streamed, read = (_at(price, amount) for price, amount in zip(prices, self._amounts))
        brought = np.minimum(streamed, read)
        tokens, layers, columns = work.shape
        # The cost of each depth: the work of the layers below it, and bringing those above.
        cost = np.zeros((tokens, layers + 1, columns))
        np.cumsum(work, axis=1, out=cost[:, 1:])
        cost[:, :layers] += brought[:, ::-1].cumsum(axis=1)[:, ::-1]
        computed = np.arange(layers)[None, :, None] < cost.argmin(axis=1)[:, None, :]
        by = (computed, ~computed & (streamed <= read), ~computed & (streamed > read))
        self.usage = np.vstack([self.usage, [amount[taken].sum() for amount, taken in zip(self._amounts, by)]])
        return float(cost.min(axis=1).sum())

    def least_s(self, seconds: np.ndarray, start_s: float = 0.0) -> tuple[float, np.ndarray]:
        """A proven least time of the longest path, and the prices that prove it.

        ``seconds`` [3]: what a unit of each usage takes; ``start_s`` passes before the first path does anything.

        Proof. Let a load end at M by a division of usage u: start + u0 s0 <= M, u1 s1 <= M, u2 s2 <= M. For shares
        p >= 0 that sum to 1, M is at least the sum of p times these three. So it is at least the least such sum over
        all divisions whose columns are computed from below (Eq. 5), which ``cheapest`` returns. That holds for all
        shares, hence for the best. Nothing is assumed of token dependencies, order, idling or races (``bound_s``).
        """
        start = np.array([start_s, 0.0, 0.0])
        shares, best_s, proof = np.full(3, 1 / 3), 0.0, np.full(3, 1 / 3)
        for _ in range(_MOST_CUTS):
            cost_s = self.cheapest(shares * seconds) + shares[0] * start_s
            if cost_s >= best_s:
                best_s, proof = cost_s, shares
            shares, most_s = _highest_floor(self.usage * seconds + start)
            if most_s - best_s <= _CLOSE * most_s:
                break
        return best_s, proof

    def fits(self, capacity: np.ndarray) -> bool:
        """False if no division, nor any mixture of some, asks for as little as ``capacity`` [3] of every path."""
        scale = np.maximum([np.where(np.isfinite(a), a, 0.0).sum() for a in self._amounts], np.finfo(float).tiny)
        shares = np.full(3, 1 / 3)
        for _ in range(_MOST_CUTS):
            if self.cheapest(shares / scale) > float(shares @ (capacity / scale)):
                return False
            shares, most = _highest_floor((self.usage - capacity) / scale)
            if most <= 0.0:
                return True
        return True


def _at(price: float, amount: np.ndarray) -> np.ndarray:
    """The cost of amounts; where a path does not lead there (infinite) it is infinite at a price of nothing, too."""
    return np.where(np.isfinite(amount), price * np.where(np.isfinite(amount), amount, 0.0), np.inf)


def _highest_floor(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Shares [3], summing to one, that make the least of ``rows @ shares`` largest, and that least.

    A linear program of four variables.
    """
    import highspy

    scale = float(np.abs(rows).max()) or 1.0
    table = np.vstack([np.hstack([rows / scale, -np.ones((len(rows), 1))]), [1.0, 1.0, 1.0, 0.0]])
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = 4, len(table)
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = np.array([0.0, 0.0, 0.0, 1.0])
    program.col_lower_ = np.array([0.0, 0.0, 0.0, -highspy.kHighsInf])
    program.col_upper_ = np.full(4, highspy.kHighsInf)
    program.row_lower_ = np.append(np.zeros(len(rows)), 1.0)
    program.row_upper_ = np.append(np.full(len(rows), highspy.kHighsInf), 1.0)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.arange(0, table.size + 1, 4)
    program.a_matrix_.index_ = np.tile(np.arange(4), len(table))
    program.a_matrix_.value_ = table.ravel()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(program)
    solver.run()
    *shares, least = solver.getSolution().col_value
    return np.maximum(shares, 0.0), float(least) * scale


def three_way_bound_s(problem: LoadProblem, bytes_per_s: float, read_bytes_per_s: float) -> float:
    """A time below which no load over three paths can end, at constant rates; see ``Divisions.least_s``.

    A load that computes nothing does not wait for the processor's start: the lower of both cases counts.
    """
    seconds = np.array([1.0, 1.0 / bytes_per_s, 1.0 / read_bytes_per_s])
    least_s, _ = Divisions(problem).least_s(seconds, problem.start_s)
    if problem.start_s:
        idle = replace(problem, compute_s=np.full(problem.compute_s.shape, np.inf))
        least_s = min(least_s, Divisions(idle).least_s(seconds)[0])
    return least_s * (1.0 - ROUNDING)


def clairvoyant_three_way_s(problem: LoadProblem, done: Callable[[float], tuple[float, float, float]]) -> float:
    """The same bound where the paths vary. ``done(s)``: the most that processor (nominal seconds, its start taken off),
    link and storage (bytes) can have done in the first ``s`` seconds; none of it falls. Infinite if no time is enough.

    Proof as in ``Divisions.least_s``, with what each path can have done in place of its rate times M; by bisection.
    """
    divisions = Divisions(problem)

    def enough(elapsed_s: float) -> bool:
        return divisions.fits(np.array(done(elapsed_s)))

    return first_enough_s(enough, float(problem.compute_s.sum()), _CLOSE)


def three_way_stage(
    problem: LoadProblem,
    divisions: Divisions,
    seconds: np.ndarray,
    *,
    absent: np.ndarray,
    computable: np.ndarray,
    ahead_s: np.ndarray,
) -> Stage:
    """Divides the ``absent`` units [T, L, C] of a problem so that its paths end together.

    ``seconds`` [3]: what a nominal second, a byte of the link and a byte of storage take. ``computable``: absent units
    that nothing below in their column keeps from being computed. ``ahead_s`` [3]: what each path has before it first.

    The prices of the bound say what bringing a unit costs, by the cheaper way. Units are computed in the order of what
    that saves; of the rest, storage takes those that cost the link most for what they cost storage. Link and storage
    first bring what computing waits for, then, under per_head, what stays theirs for the largest change of rates: a
    division that is made again finds little that another path should have had.
    """
    _, shares = divisions.least_s(seconds, problem.start_s)
    stream_s, read_s = problem.stream_bytes * seconds[1], problem.stored_bytes * seconds[2]
    labels = column_labels(replace(problem, stream_bytes=_brought(shares, stream_s, read_s)))
    order = np.flatnonzero(computable)
    order = order[np.argsort(labels.ravel()[order], kind="stable")]
    work_s = np.append(0.0, ahead_s[0] + np.cumsum(problem.compute_s.ravel()[order]) * seconds[0])

    def shared(cut: int) -> tuple[np.ndarray, np.ndarray, float]:
        """What is computed up to this cut, what storage reads of the rest, and when all of the rest has come."""
        computed = np.zeros(problem.compute_s.shape, bool)
        computed.ravel()[order[:cut]] = True
        left = np.flatnonzero(absent & ~computed)
        first, ends_s = _shared(stream_s.ravel()[left], read_s.ravel()[left], ahead_s)
        return computed, left[first], ends_s

    # Computing more ends later, bringing less ends sooner: the first cut at which computing ends last, or the one
    # before.
    cut = bisect_left(range(order.size), True, key=lambda cut: bool(work_s[cut] >= shared(cut)[2]))
    if cut and max(work_s[cut - 1], shared(cut - 1)[2]) < work_s[cut]:
        cut -= 1
    computed, taken, _ = shared(cut)
    read = np.zeros(problem.units, bool)
    read[taken] = True
    brought = absent & ~computed
    sureness = labels
    if problem.coupling == "per_head":
        # Under all_heads columns are few: a hole in one costs more, if the link fails, than such an order saves.
        sureness = _sureness(labels, stream_s, read_s, computed, brought, read.reshape(computed.shape))
    return by_storage(ordered_stage(problem, computed, brought, labels, sureness), read)


def _sureness(
    labels: np.ndarray,
    stream_s: np.ndarray,
    read_s: np.ndarray,
    computed: np.ndarray,
    brought: np.ndarray,
    read: np.ndarray,
) -> np.ndarray:
    """By which factor (its logarithm) rates may change until each `brought` unit [T, L, C] is better had by another
    path.

    Towards the processor: the slope of its label over that of the last computed unit. Between link and storage: the
    ratio of what it takes of both over that where they divide.
    """
    slope = np.log(np.maximum(labels, _LEAST)) - np.log(np.maximum(1.0 - labels, _LEAST))
    from_processor = slope - slope[computed].max() if computed.any() else np.full(slope.shape, np.inf)
    streamed = brought & ~read
    if not (read.any() and streamed.any()):
        return from_processor
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.log(stream_s) - np.log(read_s))
    between = ratio[read].min() / 2 + ratio[streamed].max() / 2
    return np.minimum(from_processor, np.where(read, ratio - between, between - ratio))


def _brought(shares: np.ndarray, stream_s: np.ndarray, read_s: np.ndarray) -> np.ndarray:
    """What bringing each unit costs, by the cheaper way. One that lies in neither must be computed: it costs more than
    all others together."""
    cost = np.minimum(_at(shares[1], stream_s), _at(shares[2], read_s))
    nowhere = np.isinf(cost)
    cost[nowhere] = 1.0 + 1e3 * cost[~nowhere].sum()
    return cost


def _shared(stream_s: np.ndarray, read_s: np.ndarray, ahead_s: np.ndarray) -> tuple[np.ndarray, float]:
    """The units that storage reads, the link bringing the rest, so that the later of both ends soonest, and that end.
    Infinite if a unit lies in neither."""
    if not stream_s.size:
        return np.empty(0, int), 0.0
    only_link, only_storage = np.isinf(read_s), np.isinf(stream_s)
    ratio = np.divide(stream_s, read_s, out=np.zeros(stream_s.size), where=~(only_link | only_storage) & (read_s > 0.0))
    ratio[only_link], ratio[only_storage] = -1.0, np.inf
    dearest_first = np.argsort(-ratio, kind="stable")
    # After the first of them by storage, and the others by the link.
    read_ends_s = np.append(0.0, np.cumsum(read_s[dearest_first]))
    streamed_ends_s = np.append(np.cumsum(stream_s[dearest_first][::-1])[::-1], 0.0)
    ends_s = np.maximum(ahead_s[2] + read_ends_s, ahead_s[1] + streamed_ends_s)
    first = int(ends_s.argmin())
    return dearest_first[:first], float(ends_s[first])
