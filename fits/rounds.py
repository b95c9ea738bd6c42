"""What the fits of a device's numbers on printed throughput share: cells simulated, squares made least, factors."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario

Numbers = dict[str, float]


def simulated(scenario: Scenario) -> tuple[float, float]:
    figures = metrics_for(scenario, run_scenario(scenario))
    return figures.get("throughput_tokens_per_s", float("nan")), figures.get("reuse_rate", 0.0)


def simulate(scenarios: Sequence[Scenario], workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens/s and reuse of every scenario, by events."""
    throughput, reuse = zip(*Parallel(n_jobs=workers)(delayed(simulated)(one) for one in scenarios), strict=True)
    return np.array(throughput), np.array(reuse)


def corrected(
    known: Sequence[Any], predicted: Callable[[Sequence[Any]], np.ndarray], ours: np.ndarray, reuse: np.ndarray
) -> list[Any]:
    """The cells with what a simulation taught: their reuse, and its tokens/s over the ones that are `predicted`."""
    plain = [replace(one, reuse_rate=float(rate), factor=1.0) for one, rate in zip(known, reuse, strict=True)]
    factors = ours / predicted(plain)
    return [replace(one, factor=float(factor)) for one, factor in zip(plain, factors, strict=True)]


def write_left_out(path: Path, device: str, rows: Iterable[tuple[str, str, float]]) -> None:
    """Keeps what intervals of runs on the device are made from: which part of the cells a fit left out, one of them,
    and the logarithm of the printed time over ours by the numbers of that fit."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("device", "part", "case", "log_error"))
        writer.writerows((device, part, case, f"{error:.4f}") for part, case, error in rows)


def huber_scale(residuals: np.ndarray) -> float:
    """The residual beyond which a loss should be linear: 1.345 standard deviations, which keeps 95 % of the efficiency
    of least squares where errors are normal (Huber), the deviation from the median absolute one."""
    return 1.345 * 1.4826 * float(np.median(abs(residuals)))


def found(
    residuals: Callable[[Numbers], np.ndarray],
    start: Numbers,
    bounds: Mapping[str, tuple[float, float]],
    *,
    scale: float | None = None,
    rounds: int = 60,
    enough: float = 1e-7,
    ridge: float = 1e-6,
) -> Numbers:
    """The numbers within their bounds whose residuals are least, by Levenberg-Marquardt in their logarithms, a step at
    most 0.3. The loss is quadratic; with a `scale`, linear beyond it, so that cells which nothing here explains pull
    little."""

    def function(x: np.ndarray) -> np.ndarray:
        return residuals(dict(zip(start, np.exp(x).tolist(), strict=True)))

    def weights(r: np.ndarray) -> np.ndarray:
        return np.ones_like(r) if scale is None else 1 / np.sqrt(1 + (r / scale) ** 2)

    def loss(r: np.ndarray) -> float:
        return float(r @ r) if scale is None else float((2 * (np.sqrt(1 + (r / scale) ** 2) - 1)).sum())

    low, high = (np.log([bounds[name][end] for name in start]) for end in (0, 1))
    x, damping, step = np.log([*start.values()]), 1e-2, 1e-4
    r = function(x)
    for _ in range(rounds):
        jacobian = np.stack([(function(x + step * unit) - r) / step for unit in np.eye(x.size)], axis=1)
        weighted = (jacobian * weights(r)[:, None]).T
        normal, slope, before = weighted @ jacobian, weighted @ r, loss(r)
        for _ in range(8):
            change = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + ridge), slope)
            there = np.clip(x + np.clip(change, -0.3, 0.3), low, high)
            r_there = function(there)
            if loss(r_there) < before:
                break
            damping *= 4
        else:
            break
        x, r, damping = there, r_there, max(damping / 5, 1e-7)
        if before - loss(r) < enough * before:
            break
    return dict(zip(start, np.exp(x).tolist(), strict=True))
