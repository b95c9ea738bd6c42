"""A proven lower bound on the time of any load, whatever its schedule (a Lagrangian bound)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvferry.policies.loading.problem import LoadProblem

# Bounds are lowered by this much, so that rounding in the sums below cannot lift one above a schedule.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Frontier:
    """The fewest bytes that must be streamed, as a function of the compute work spent: a convex polyline.

    Vertices: ``work_s`` ascends from 0 to all work, ``n_bytes`` descends from all bytes to 0. It depends on
    the problem alone, not on any rate. No set of units that a load may compute lies below the line.
    ``start_s``: how long the processor takes to start before it does any of that work.
    """

    work_s: np.ndarray
    n_bytes: np.ndarray
    start_s: float = 0.0

    def least_bytes(self, work_s: float) -> float:
        """The fewest bytes that the link must carry if the processor spends at most ``work_s`` nominal seconds."""
        return float(np.interp(work_s, self.work_s, self.n_bytes))


def column_labels(problem: LoadProblem) -> np.ndarray:
    """For each unit, the multiplier above which computing it pays, its column taken alone; shape [T, L, C].

    With multiplier x in 0..1 a column's best depth minimises (1 - x) work - x bytes saved, work and bytes as
    shares of the whole problem's. The best depths are nested in x, so each unit has one label; labels never
    decrease along a column, and label / (1 - label) is the slope of the column's lower convex hull there.

    Computed as isotonic regression: label[l] = max over i <= l of min over j >= l of the label that the run
    of layers i..j would have as one piece.
    """
    tokens, layers, columns = problem.compute_s.shape
    work = _cumulative(problem.compute_s)
    saved = _cumulative(problem.stream_bytes)
    labels = np.zeros((layers, tokens * columns))
    for i in range(layers):
        run_work = work[i + 1 :] - work[i]
        run = run_work / (run_work + (saved[i + 1 :] - saved[i]) + np.finfo(float).tiny)
        for j in range(len(run) - 2, -1, -1):
            np.minimum(run[j], run[j + 1], out=run[j])
        np.maximum(labels[i:], run, out=labels[i:])
    return labels.reshape(layers, tokens, columns).transpose(1, 0, 2)


def _cumulative(amounts: np.ndarray) -> np.ndarray:
    """Sums up to each depth as shares of the total, shape [L + 1, T * C]."""
    tokens, layers, columns = amounts.shape
    shares = np.zeros((layers + 1, tokens, columns))
    np.cumsum(amounts.transpose(1, 0, 2), axis=0, out=shares[1:])
    return shares.reshape(layers + 1, -1) / (amounts.sum() or 1.0)


def frontier(
    problem: LoadProblem,
    smallest_scale: float = 1.0,
    labels_of: Callable[[LoadProblem], np.ndarray] = column_labels,
) -> Frontier:
    """The frontier of a problem; ``smallest_scale`` is that of the smallest encoding level a load may use. `labels_of`
    gives ``column_labels``, which may be remembered.

    All columns' hull segments in the order of their slope: the lower convex envelope of all (work, bytes)
    pairs, token dependencies left out.
    """
    labels = labels_of(problem).ravel()
    order = np.argsort(labels, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(labels[order])), order.size - 1)
    work_s = np.append(0.0, np.cumsum(problem.compute_s.ravel()[order])[ends])
    brought = np.append(0.0, np.cumsum(problem.stream_bytes.ravel()[order])[ends])
    # Units that cost no work are computed in any case: of vertices with equal work only the lowest counts.
    lowest = np.append(np.diff(work_s) > 0.0, True)
    n_bytes = (brought[-1] - brought[lowest]) * smallest_scale
    return Frontier(work_s=work_s[lowest], n_bytes=n_bytes, start_s=problem.start_s)


def bound_s(frontier: Frontier, bytes_per_s: float) -> float:
    """A time below which no load can end, at a constant rate and the problem's nominal compute times.

    Proof. Let a load end at M, having computed the units S: a prefix of layers in each column (Eq. 5). Every
    unit outside S came over the link, so R M >= bytes outside S. The processor did work(S) behind its start A, so
    work(S) <= D(M) = max(0, M - A). For any multipliers the pair (work(S), bytes outside S) lies on or above the lower
    convex envelope F of all such pairs, which is what ``frontier`` holds: per column the lower hull over depths, and
    the sum over columns of convex polylines is their segments in order of slope. F never rises, so
    R M >= F(work(S)) >= F(D(M)), and M is at least the smallest solution of R M >= F(D(M)), returned here.

    The proof assumes nothing about token dependencies, stages, idling, order, or units done on both paths: a unit
    that was raced or streamed in vain counts once, where it was finished, and other costs (round trips,
    decompression, dispatch) only add. So the bound holds for every schedule, under both couplings.
    """
    ends_s = frontier.start_s + frontier.work_s
    shortfall = frontier.n_bytes - bytes_per_s * ends_s
    k = int(np.argmax(shortfall <= 0.0))
    if k == 0:
        # All has come before the processor has started.
        return float(frontier.n_bytes[0] / bytes_per_s) * (1.0 - ROUNDING)
    longer_s = ends_s[k] - ends_s[k - 1]
    share = shortfall[k - 1] / (shortfall[k - 1] - shortfall[k])
    return float(ends_s[k - 1] + share * longer_s) * (1.0 - ROUNDING)


def clairvoyant_bound_s(
    frontier: Frontier,
    delivered_bytes: Callable[[float], float],
    computed_s: Callable[[float], float],
) -> float:
    """The same bound where both paths vary: even a schedule that knows the future needs this long.

    Both functions take seconds since the load began and never fall: the most bytes the link can have handed
    over by then (the trace's integral, round trip taken off), and the most nominal compute seconds the
    processor can have done, its start taken off: the frontier's own is not looked at. The proof above holds with C(M)
    for R M and D(M) for its own: the smallest M with C(M) >= F(D(M)), found by bisection from below. Infinite if no
    time is enough.
    """

    def enough(elapsed_s: float) -> bool:
        return delivered_bytes(elapsed_s) >= frontier.least_bytes(computed_s(elapsed_s))

    return first_enough_s(enough, float(frontier.work_s[-1]), ROUNDING)


def first_enough_s(enough: Callable[[float], bool], guess_s: float, closeness: float) -> float:
    """Returns the first time that is `enough`, as all later ones are, by bisection from below: it is at most the share
    `closeness`, and the rounding of sums, too early. Infinite if no time is enough."""
    if enough(0.0):
        return 0.0
    low_s, high_s = 0.0, max(guess_s, 1e-6)
    while not enough(high_s):
        low_s, high_s = high_s, 2.0 * high_s
        if high_s > 1e12:
            return float("inf")
    while high_s - low_s > closeness * high_s:
        middle_s = (low_s + high_s) / 2.0
        low_s, high_s = (low_s, middle_s) if enough(middle_s) else (middle_s, high_s)
    return low_s * (1.0 - ROUNDING)
