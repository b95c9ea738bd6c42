"""The chain: one order of all units for every rate. The processor takes from its front, the link from its back.

Which set of units is worth computing depends only on the exchange rate: how many streamed bytes a second of compute
must save. The best sets for all exchange rates are nested, so they are the prefixes of one order: however fast either
path turns out to be, letting both meet in this order is (nearly) best.
"""

import numpy as np

from kvferry.policies.loading.bound import column_labels
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import LoadProblem

# How many exchange rates are tried; units between two of them are ordered by place.
_MULTIPLIERS = 128


def chain_labels(problem: LoadProblem) -> np.ndarray:
    """For each unit, how many of the tried multipliers leave it to the link; shape [T, L, C], int.

    For multiplier x the depths m_t, non-increasing in t, minimise (1 - x) work - x bytes saved in each c.
    Such a set is closed: whatever a unit of it depends on, under either coupling, lies in it. A union of
    closed sets is closed, hence so is every set of units with labels up to some value: labels never decrease
    along t or l, rounding or not.
    """
    tokens, layers, columns = problem.compute_s.shape
    own = column_labels(problem)
    # Between quantiles of what columns would do by themselves: fine steps where many units change sides, and
    # never right where a column is undecided, which rounding would then decide.
    steps = np.unique(np.quantile(own, np.linspace(0.0, 1.0, _MULTIPLIERS + 1)).round(12))
    multipliers = (steps[:-1] + steps[1:]) / 2.0
    depths = _nested_depths(problem, multipliers)
    cell = np.arange(tokens * columns).reshape(tokens, columns, 1) * (layers + 1) + depths
    stops = np.bincount(cell.ravel(), minlength=tokens * columns * (layers + 1))
    left_out = stops.reshape(tokens, columns, layers + 1).cumsum(axis=2)[:, :, :layers]
    return left_out.transpose(0, 2, 1)


def _nested_depths(problem: LoadProblem, multipliers: np.ndarray) -> np.ndarray:
    """The best non-increasing depths for every multiplier, shape [T, C, G]: dynamic programming over t."""
    tokens, layers, columns = problem.compute_s.shape
    # [T, L + 1, C, 2]: work and bytes saved up to each depth, as shares of the whole.
    gains = np.zeros((tokens, layers + 1, columns, 2))
    np.cumsum(problem.compute_s / (problem.compute_s.sum() or 1.0), axis=1, out=gains[:, 1:, :, 0])
    np.cumsum(problem.stream_bytes / (problem.stream_bytes.sum() or 1.0), axis=1, out=gains[:, 1:, :, 1])
    weights = np.stack([1.0 - multipliers, -multipliers])

    # best[d]: least cost so far with the current token chunk at depth d or deeper; reach[t, d]: that depth.
    best = np.zeros((layers + 1, columns, multipliers.size))
    reach = np.empty((tokens, layers + 1, columns, multipliers.size), dtype=np.int16)
    every_depth = np.arange(layers + 1, dtype=np.int16).reshape(-1, 1, 1)
    for t in range(tokens):
        best += gains[t] @ weights
        at_depth = best.copy()
        _least_from_here_on(best)
        reach[t] = layers
        np.copyto(reach[t], every_depth, where=at_depth == best)
        _least_from_here_on(reach[t])

    depths = np.zeros((tokens, columns, multipliers.size), dtype=np.int64)
    depths[-1] = reach[-1, 0]
    for t in range(tokens - 2, -1, -1):
        depths[t] = np.take_along_axis(reach[t], depths[t + 1 : t + 2], axis=0)[0]
    return depths


def _least_from_here_on(values: np.ndarray) -> None:
    """Replace each entry by the minimum of itself and all later entries of axis 0 (faster than ``accumulate``)."""
    for row in range(len(values) - 2, -1, -1):
        np.minimum(values[row], values[row + 1], out=values[row])


def chain_order(problem: LoadProblem) -> np.ndarray:
    """All units, ascending by (label, t, l, c): every prefix is closed under dependencies, shape [T * L * C]."""
    return np.argsort(chain_labels(problem).ravel(), kind="stable")


def chain_plan(problem: LoadProblem, bytes_per_s: float) -> Plan:
    """One stage: the chain cut where both paths end together, the link working from its back."""
    order = chain_order(problem)
    cut = meeting_point(problem, order, bytes_per_s)
    return Plan((Stage(compute=tuple(order[:cut].tolist()), stream=tuple(order[cut:][::-1].tolist())),))


def meeting_point(problem: LoadProblem, order: np.ndarray, bytes_per_s: float) -> int:
    """How many units of an order to compute, the rest being streamed, for the earliest end of both."""
    work_s = np.append(0.0, problem.start_s + np.cumsum(problem.compute_s.ravel()[order]))
    left = np.append(np.cumsum(problem.stream_bytes.ravel()[order][::-1])[::-1], 0.0)
    return int(np.argmin(np.maximum(work_s, left / bytes_per_s)))
