"""What must hold of every planner on every problem: valid plans, closed prefixes, and no way below the bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.loading.bound import bound_s, clairvoyant_bound_s, column_labels, frontier
from kvferry.policies.loading.chain import chain_labels, chain_order, chain_plan
from kvferry.policies.loading.greedy import READINGS, greedy_plan
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.split import split_plan

PLANNERS = {
    "chain": chain_plan,
    "split": split_plan,
    **{
        reading: lambda problem, rate, reading=reading: greedy_plan(problem, rate, reading=reading)
        for reading in READINGS
    },
}


@st.composite
def problems(draw: st.DrawFn) -> LoadProblem:
    coupling = draw(st.sampled_from(["per_head", "all_heads"]))
    shape = (
        draw(st.integers(1, 6)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 3)) if coupling == "per_head" else 1,
    )
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.5, 2.0]))
    of_tokens = chance.lognormal(0.0, spread, (shape[0], 1, 1))
    return LoadProblem(
        compute_s=5e-3 * chance.lognormal(0.0, spread, shape) * of_tokens,
        # Some chunks compress to nothing.
        stream_bytes=1e5 * chance.lognormal(0.0, spread, shape) * chance.choice([0.0, 1.0], p=[0.1, 0.9], size=shape),
        coupling=coupling,
        start_s=draw(st.sampled_from([0.0, 0.0, 0.004, 0.3])),
    )


rates = st.sampled_from([1e5, 5e6, 2e7, 1e8, 1e10])


@pytest.mark.parametrize("name", PLANNERS)
@given(problem=problems(), rate=rates)
def test_plans_are_valid_and_not_below_the_bound(name, problem, rate):
    plan = PLANNERS[name](problem, rate)
    plan.check(problem)
    least_s = bound_s(frontier(problem), rate)
    assert plan.stage_makespan_s(problem, rate) >= least_s
    assert plan.completion_s(problem, rate) >= least_s


@given(problem=problems())
def test_every_prefix_of_the_chain_is_closed(problem):
    order = chain_order(problem)
    # As every prefix is, if each unit comes when what it depends on has been computed before it.
    Plan((Stage(compute=tuple(order.tolist())),)).check(problem)


@given(problem=problems())
def test_labels_are_nested(problem):
    assert (np.diff(column_labels(problem), axis=1) >= 0).all()
    labels = chain_labels(problem)
    assert (np.diff(labels, axis=1) >= 0).all()
    assert (np.diff(labels, axis=0) >= 0).all()


@pytest.mark.parametrize("name", ["chain", "split", "one-stage"])
@given(problem=problems(), rate=rates, factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_twice_the_bytes_at_twice_the_rate_change_nothing(name, problem, rate, factor):
    # Powers of two, so that the arithmetic is exact.
    larger = replace(problem, stream_bytes=factor * problem.stream_bytes)
    assert PLANNERS[name](problem, rate) == PLANNERS[name](larger, factor * rate)
    assert bound_s(frontier(problem), rate) == pytest.approx(bound_s(frontier(larger), factor * rate), rel=1e-9)


@given(problem=problems(), rate=rates)
def test_a_faster_link_never_raises_the_bound(problem, rate):
    line = frontier(problem)
    assert bound_s(line, 2.0 * rate) <= bound_s(line, rate)


class Ramp:
    """A quantity that grows piecewise linearly with time, and the time when it reaches a value."""

    def __init__(self, chance: np.random.Generator, rate: float) -> None:
        self.times_s = np.append(0.0, np.cumsum(chance.exponential(5e-2, 30)))
        steps = np.diff(self.times_s) * rate * chance.uniform(0.05, 2.0, 30)
        self.values = np.append(0.0, np.cumsum(steps))
        self.last_rate = rate

    def at(self, now_s: float) -> float:
        beyond = max(0.0, now_s - self.times_s[-1]) * self.last_rate
        return float(np.interp(now_s, self.times_s, self.values)) + beyond

    def reaches(self, value: float) -> float:
        beyond = max(0.0, value - self.values[-1]) / self.last_rate
        return float(np.interp(value, self.values, self.times_s)) + beyond


def rehearse(problem: LoadProblem, link: Ramp, processor: Ramp, chance: np.random.Generator) -> float:
    """When a load ends that does anything allowed at random: idles, races, recomputes, streams in any order."""
    t_of, l_of, c_of = np.indices(problem.compute_s.shape).reshape(3, -1)
    present = np.zeros(problem.compute_s.shape, dtype=bool)
    depth = np.zeros((problem.token_chunks, problem.columns_per_chunk), dtype=int)
    eager = chance.uniform(0.2, 1.0)
    now_s, arrival, emission = 0.0, None, None

    def computable(unit: int) -> bool:
        t, l, c = t_of[unit], l_of[unit], c_of[unit]
        attended = problem.attended_layer(int(l))
        before = attended is None or present[:t, attended, c].all()
        return bool(depth[t, c] == l and before and not (problem.coupling == "per_head" and present[t, l, c]))

    while not present.all():
        missing = np.flatnonzero(~present.ravel())
        if arrival is None and (chance.random() < eager or emission is None):
            unit = int(chance.choice(missing))
            arrival = (link.reaches(link.at(now_s) + problem.stream_bytes.ravel()[unit]), unit)
        ready = [unit for unit in range(problem.units) if computable(unit)] if emission is None else []
        if ready and chance.random() < eager:
            unit = int(chance.choice(ready))
            emission = (processor.reaches(processor.at(now_s) + problem.compute_s.ravel()[unit]), unit)
        if emission is not None and (arrival is None or emission[0] <= arrival[0]):
            now_s, unit = emission
            emission = None
            depth[t_of[unit], c_of[unit]] += 1
        else:
            now_s, unit = arrival
            arrival = None
        present.ravel()[unit] = True
    return now_s


@given(problem=problems(), rate=rates, seed=st.integers(0, 2**32 - 1))
def test_no_schedule_beats_the_clairvoyant_bound(problem, rate, seed):
    chance = np.random.default_rng(seed)
    link, processor = Ramp(chance, rate), Ramp(chance, 1.0)
    least_s = clairvoyant_bound_s(frontier(problem), link.at, processor.at)
    assert rehearse(problem, link, processor, chance) >= least_s
