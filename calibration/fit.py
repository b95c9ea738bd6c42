"""A roofline's efficiencies from measured ops. Needs no torch: what others measured is fitted just so."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from kvferry.machine.ops import Op
from kvferry.sim.costs.op_rules import Arithmetic
from kvferry.specs.model import ModelSpec


@dataclass(frozen=True)
class Timed:
    """An op on the idle processor, dispatch apart."""

    op: Op
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RooflineFit:
    """`raised`: by how much both peak rates had to be raised so that no kernel is more efficient than they allow."""

    efficiency: dict[str, float]
    layer_s: float
    raised: float
    # By op: the median and the largest |fitted / measured - 1|, and how many were fitted.
    errors: dict[str, tuple[float, float, int]]

    def to_json(self) -> dict[str, Any]:
        errors = {
            op: {"median": median, "worst": worst, "points": count}
            for op, (median, worst, count) in self.errors.items()
        }
        fitted = {"efficiency": self.efficiency, "layer_s": self.layer_s, "peaks_raised_by": self.raised}
        return {**fitted, "relative_error": errors}

    @property
    def summary(self) -> str:
        """The errors in a line."""
        parts = (
            f"{op} {median:.0%} (worst {worst:.0%}, {count} points)"
            for op, (median, worst, count) in self.errors.items()
        )
        return ", ".join(parts)


def fit_roofline(
    model: ModelSpec,
    timed: Sequence[Timed],
    flop_per_s: float,
    bytes_per_s: float,
    alike: Mapping[str, str] | None = None,
    fixed: bool = True,
) -> RooflineFit:
    """Least squares of the relative error, each kind of op counting as much as any other.

    `alike` gives a kernel the efficiency of another, where the ops cannot tell them apart; without `fixed`, layers
    have no fixed cost.

    A roofline is linear in the inverse of its efficiencies: a work takes max(flop / peak, bytes / bandwidth) over the
    efficiency of its kernel. So the best one is found, not searched for; none of the inverses may be negative.
    """
    arithmetic = Arithmetic(model)
    kind_of = dict(alike or {})
    everything: set[str] = {kernel for each in timed for kernel, _, _ in arithmetic(each.op)}
    kernels = sorted({kind_of.get(kernel, kernel) for kernel in everything})
    counts: defaultdict[str, int] = defaultdict(int)
    for each in timed:
        counts[type(each.op).__name__] += 1
    rows, weights = [], []
    for each in timed:
        row = dict.fromkeys(kernels, 0.0)
        for kernel, flop, n_bytes in arithmetic(each.op):
            row[kind_of.get(kernel, kernel)] += max(flop / flop_per_s, n_bytes / bytes_per_s)
        rows.append([fixed * arithmetic.layer_passes(each.op), *row.values()])
        weights.append(counts[type(each.op).__name__] ** -0.5)
    relative = np.array(rows) / np.array([each.seconds for each in timed])[:, None]
    found = non_negative(relative, np.ones(len(timed)), np.array(weights))
    layer_s, inverses = float(found[0]), found[1:]
    # Whatever costs nothing that can be seen is as fast as the peaks.
    least = min((inverse for inverse in inverses if inverse > 0), default=1.0)
    raised = max(1.0, 1 / least)
    efficiency: dict[str, float] = {
        kernel: min(1.0, 1 / (inverse * raised)) if inverse > 0 else 1.0
        for kernel, inverse in zip(kernels, inverses.tolist(), strict=True)
    }
    efficiency |= {kernel: efficiency[kind_of[kernel]] for kernel in sorted(everything & kind_of.keys())}
    return RooflineFit(
        efficiency=efficiency, layer_s=layer_s, raised=raised, errors=_errors(timed, relative @ found - 1)
    )


def non_negative(columns: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The x without a negative entry for which the weighted |columns x - target|^2 is least.

    By trying every choice of entries that are not 0: there are a handful of columns. One that is 0 throughout stays 0.
    """
    scale = np.abs(columns).max(axis=0)
    used = [n for n in range(columns.shape[1]) if scale[n] > 0]
    weighted, wanted = columns * weights[:, None], target * weights
    best, least = np.zeros(columns.shape[1]), float(wanted @ wanted)
    for size in range(1, len(used) + 1):
        for chosen in map(list, combinations(used, size)):
            # Columns differ by many orders of magnitude: seconds per layer stand beside efficiencies.
            solved = np.linalg.lstsq(weighted[:, chosen] / scale[chosen], wanted, rcond=None)[0] / scale[chosen]
            off = weighted[:, chosen] @ solved - wanted
            if (solved >= 0).all() and off @ off < least * (1 - 1e-9):
                best, least = np.zeros(columns.shape[1]), float(off @ off)
                best[chosen] = solved
    return best


def fixed_and_rate(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(seconds, rate) such that amounts take seconds + amount / rate: the line with the least relative error."""
    amounts, seconds = np.array(points, dtype=float).T
    columns = np.column_stack([np.ones(amounts.size), amounts]) / seconds[:, None]
    fixed_s, per_unit_s = non_negative(columns, np.ones(amounts.size), np.ones(amounts.size))
    if per_unit_s == 0:  # nothing but noise between them
        return 0.0, float(np.median(amounts / seconds))
    return float(fixed_s), float(1 / per_unit_s)


def _errors(timed: Sequence[Timed], off: np.ndarray) -> dict[str, tuple[float, float, int]]:
    by_op: defaultdict[str, list[float]] = defaultdict(list)
    for each, error in zip(timed, np.abs(off).tolist(), strict=True):
        by_op[type(each.op).__name__].append(error)
    return {op: (float(np.median(errors)), max(errors), len(errors)) for op, errors in sorted(by_op.items())}
