"""A receding horizon: what it takes the link for, on paper."""

from unittest.mock import Mock, patch

import numpy as np
import pytest

from kvferry.policies.loading.horizon import Horizon
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress

UNITS = np.ones((4, 4, 1))


def facts(now_s: float) -> LoadFacts:
    return LoadFacts(now_s=now_s, planned_bytes_per_s=100.0, rtt_s=0.0)


def begun(deviations: float, now_s: float = 50.0) -> tuple[Horizon, LoadProgress]:
    loader = Horizon(deviations)
    problem = LoadProblem(compute_s=UNITS, stream_bytes=1000 * UNITS, coupling="all_heads")
    loader.start(problem, facts(now_s))
    return loader, LoadProgress(problem)


def test_at_first_the_planned_rate_is_certain() -> None:
    loader, _ = begun(1.0)
    assert loader._arriving_bytes(np.array([1.0, 4.0]), facts(50.0)) == pytest.approx([100.0, 400.0])


def test_what_arrives_is_the_mean_less_deviations_that_shrink_with_the_horizon() -> None:
    loader, _ = begun(0.5)
    loader._variance = 40.0**2
    # Over a second a rate lasts as a whole, over four seconds a mean of four such: 100 - 0.5 x 40, 100 - 0.5 x 20.
    assert loader._arriving_bytes(np.array([1.0, 4.0]), facts(50.0)) == pytest.approx([80.0, 360.0])
    # Never less by a later time than by an earlier one, however unsteady.
    loader._variance = 300.0**2
    assert (np.diff(loader._arriving_bytes(np.linspace(0.1, 9.0, 50), facts(50.0))) >= 0).all()


@patch.object(Horizon, "_plan", autospec=True, side_effect=Horizon._plan)
def test_it_plans_again_as_time_passes(plan: Mock) -> None:
    loader, progress = begun(1.0)
    for now_s in (50.1, 50.2):
        loader.next_stream(progress, facts(now_s))
    assert plan.call_count == 1
    loader.next_stream(progress, facts(50.26))
    assert plan.call_count == 2
