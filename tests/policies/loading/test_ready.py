"""What becomes computable is told from what changed: on random loads nothing is left out, and nothing is told twice."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.ready import Ready


@pytest.mark.parametrize("coupling", ["per_head", "all_heads"])
@settings(deadline=None)
@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2)), seed=st.integers(0, 10**6))
def test_all_that_can_be_computed_was_told(coupling: Coupling, shape: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape if coupling == "per_head" else (*shape[:2], 1)
    problem = LoadProblem(compute_s=np.ones(shape), stream_bytes=np.ones(shape), coupling=coupling)
    progress, ready = LoadProgress(problem), Ready(problem)
    told: list[int] = []
    while not progress.complete:
        # Between two questions anything may happen, and several things at once.
        for _ in range(rng.integers(0, 4)):
            if steps := _steps(problem, progress):
                step, unit = steps[rng.integers(len(steps))]
                step(unit)
        told += ready.news(progress)
        computable = [unit for unit in range(problem.units) if progress.computable(unit)]
        assert set(computable) <= set(told)
        assert len(set(told)) == len(told)


def _steps(problem: LoadProblem, progress: LoadProgress) -> list[tuple[Callable[[int], None], int]]:
    """What a pipeline may do next: hand a unit over, or find that one has come."""
    steps: list[tuple[Callable[[int], None], int]] = []
    for unit in range(problem.units):
        if progress.computable(unit):
            steps.append((progress.hand_over_compute, unit))
        if progress.computing[unit]:
            steps.append((progress.computed, unit))
        if progress.streaming[unit]:
            steps.append((lambda unit: progress.streamed(unit, 1.0), unit))
        elif not progress.present[unit]:
            steps.append((lambda unit: progress.hand_over_stream(unit, 1.0), unit))
    return steps
