"""How long each planner takes and how far its plan is above the proven bound.
Ceilings (issue "Foundation"): at 5,760 units the greedy 50 ms, the chain with the bound 20 ms and 1 % above it;
at 57,600 units at most 12 times the chain's time. Problems are generated: costs grow with the position of the
token chunk; heads and layers differ ("heterogeneous"), and token chunks differ strongly too ("vlm-like").
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from benchmarks.row import Row, best_s, lower
from kvferry.policies.loading.bound import bound_s, frontier
from kvferry.policies.loading.chain import chain_order, chain_plan
from kvferry.policies.loading.greedy import READINGS, greedy_plan
from kvferry.policies.loading.milp import milp_plan
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.split import split_plan

LAYERS, HEADS = 36, 8
MILP_LIMIT_S = 60.0
KINDS = ("homogeneous", "heterogeneous", "vlm-like")
# The link brings everything in 1 / share of the time that computing everything takes.
SHARES = (0.3, 1.0, 3.0)
Result = TypeVar("Result")


def problem(kind: str, tokens: int, coupling: Coupling, seed: int = 0) -> LoadProblem:
    columns = HEADS if coupling == "per_head" else 1
    shape, chance = (tokens, LAYERS, columns), np.random.default_rng(seed)
    spread = 0.0 if kind == "homogeneous" else 1.0
    token_spread = 1.0 if kind == "vlm-like" else 0.0

    def noise(sigma: float, *dimensions: int) -> np.ndarray:
        return chance.lognormal(0.0, sigma, dimensions)

    density = noise(0.8 * spread, 1, LAYERS, columns) * noise(token_spread, tokens, 1, 1) * noise(0.3 * spread, *shape)
    size = noise(0.5 * spread, 1, LAYERS, columns) * noise(0.7 * token_spread, tokens, 1, 1)
    rank = np.arange(1, tokens + 1).reshape(-1, 1, 1)
    compute_s = (1.3e-4 + 2e-5 * rank * density) * HEADS / columns
    # The last layer is only projected (IV-C).
    compute_s[:, -1] = 5e-5 * HEADS / columns
    stream_bytes = 4.5e5 * size * noise(0.15 * spread, *shape) * HEADS / columns
    return LoadProblem(compute_s=compute_s, stream_bytes=stream_bytes, coupling=coupling)


def timed(work: Callable[[], Result], repeat: int) -> tuple[float, Result]:
    """The least processor time of some runs (all threads), in milliseconds, and the last result."""
    results: list[Result] = []
    took_s = best_s(lambda: results.append(work()), rounds=repeat, clock=time.process_time)
    return 1e3 * took_s, results[-1]


def planned(kind: str, tokens: int, coupling: Coupling, repeat: int, least_ms: float | None) -> Iterator[Row]:
    """Of one problem. The first row is the chain with the bound: at most 20 ms, or 12 times the smaller problem's."""
    load = problem(kind, tokens, coupling)
    what = f"{load.units:,} units, {coupling}, {kind}"
    bound_ms, _ = timed(lambda: bound_s(frontier(load), 1e8), repeat)
    order_ms, _ = timed(lambda: chain_order(load), repeat)
    yield lower(f"{what}: chain and bound", bound_ms + order_ms, "ms", 20.0 if least_ms is None else 12.0 * least_ms)
    planners: dict[str, Callable[[LoadProblem, float], Plan]] = {"chain": chain_plan, "split": split_plan}
    for reading in READINGS:
        planners[reading] = lambda load, rate, reading=reading: greedy_plan(load, rate, reading=reading)  # type: ignore[misc]
    line = frontier(load)
    for name, planner in planners.items():
        for share in SHARES:
            rate = share * load.stream_bytes.sum() / load.compute_s.sum()
            plan_ms, plan = timed(lambda planner=planner, rate=rate: planner(load, rate), repeat)  # type: ignore[misc]
            least_s = bound_s(line, rate)
            yield lower(f"{what}, link {share:g}: {name}", plan_ms, "ms")
            # By Eq. 1, and when computing waits for what it attends to (link and processor only).
            by_eq_1 = plan.stage_makespan_s(load, rate) / least_s
            yield lower(f"{what}, link {share:g}: {name}, makespan", by_eq_1, "of bound", 1.0)
            rehearsed = plan.completion_s(load, rate) / least_s
            yield lower(f"{what}, link {share:g}: {name}, rehearsed", rehearsed, "of bound", 1.0)


def against_the_milp() -> Iterator[Row]:
    """The exact MILP (HiGHS, gap 1e-4) beside the greedy (one-stage) and the chain, per_head."""
    for kind in ("heterogeneous", "vlm-like"):
        for tokens in (10, 20):
            load = problem(kind, tokens, "per_head")
            rate = load.stream_bytes.sum() / load.compute_s.sum()
            what = f"{tokens}K tokens, {kind}"
            milp_ms, exact = timed(lambda: milp_plan(load, rate, time_limit_s=MILP_LIMIT_S), 1)  # noqa: B023
            greedy_ms, greedy = timed(lambda: greedy_plan(load, rate), 3)  # noqa: B023
            chain_ms, chain = timed(lambda: chain_plan(load, rate), 3)  # noqa: B023
            yield lower(f"{what}: MILP ({exact.status})", milp_ms, "ms")
            yield lower(f"{what}: MILP, makespan", 1.0 + exact.bound_gap, "of bound", 1.0)
            for name, ms, plan in (("greedy", greedy_ms, greedy), ("chain", chain_ms, chain)):
                yield lower(f"{what}: {name}", ms, "ms")
                yield lower(
                    f"{what}: {name}, makespan", plan.stage_makespan_s(load, rate) / exact.makespan_s, "of MILP"
                )


def rows() -> Iterator[Row]:
    couplings: tuple[Coupling, ...] = ("per_head", "all_heads")
    for coupling in couplings:
        tokens = 20 if coupling == "per_head" else 20 * HEADS
        for kind in KINDS:
            small = list(planned(kind, tokens, coupling, 5, None))
            yield from small
            yield from planned(kind, 10 * tokens, coupling, 2, small[0].value)
    yield from against_the_milp()
