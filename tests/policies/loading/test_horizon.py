"""A receding horizon: what it takes the link for, on paper."""

from dataclasses import replace
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


def test_rates_are_the_mean_less_deviations_that_shrink_with_the_horizon() -> None:
    loader, _ = begun(0.5)
    # At first the planned rate is certain.
    assert loader._surely_per_s(np.array([1.0, 4.0])) == pytest.approx([100.0, 100.0])
    loader._variance = 40.0**2
    # Over a second a rate lasts as a whole, over four seconds a mean of four such: 100 - 0.5 x 40, 100 - 0.5 x 20.
    assert loader._surely_per_s(np.array([1.0, 4.0])) == pytest.approx([80.0, 90.0])
    # However unsteady, it comes some day.
    loader._variance = 300.0**2
    assert (loader._surely_per_s(np.linspace(0.1, 9.0, 50)) > 0).all()


def test_what_is_needed_is_streamed_when_it_is_due_and_before_that_what_stays_the_links() -> None:
    """Chunks 0 and 2 are computed: 250 + 250 and 500 + 500 ms. The upper layer of chunk 2 begins after a second and
    attends to chunk 1, whose 20 and 80 bytes take 700 ms at 1000 / 7 bytes/s."""
    compute_s = np.array([[0.25, 0.25], [1.0, 1.0], [0.5, 0.5], [8.0, 8.0]])[:, :, None]
    n_bytes = np.array([[100.0, 100.0], [80.0, 20.0], [100.0, 100.0], [100.0, 100.0]])[:, :, None]
    problem = LoadProblem(compute_s=compute_s, stream_bytes=n_bytes, coupling="all_heads")
    loader, progress = Horizon(1.0), LoadProgress(problem)

    def at(now_s: float) -> LoadFacts:
        return replace(facts(now_s), planned_bytes_per_s=1000 / 7)

    def streamed_at(now_s: float) -> tuple[int, int, int]:
        found = loader.next_stream(progress, at(now_s))
        assert found is not None
        return problem.place(found.units[0])

    loader.start(problem, at(0.0))
    # Due at 1000 - 700 = 300 ms is the upper unit, at 1000 - 560 = 440 ms the lower one, each 250 ms before that at the
    # latest; until then comes the end of the order.
    assert streamed_at(0.049) == (3, 1, 0)
    assert streamed_at(0.051) == (1, 1, 0)
    assert streamed_at(0.189) == (3, 0, 0)
    assert streamed_at(0.191) == (1, 0, 0)

    # Less a deviation of half the rate they take 1.4 s: they are due at once.
    loader.start(problem, at(0.0))
    loader._variance = (500 / 7) ** 2
    loader._plan(progress, at(0.0))
    assert streamed_at(0.0) == (1, 1, 0)


def test_only_what_lies_below_the_mean_is_a_risk() -> None:
    # In 60 ms came nothing, or ten times the 6 bytes that were expected.
    seen = []
    for came_bytes in (0.0, 60.0):
        loader, progress = begun(1.0)
        progress.streamed_bytes = came_bytes
        loader._look(progress, facts(50.06))
        seen.append(loader._variance)
    assert seen == pytest.approx([100.0**2 * (1 - np.exp(-0.12)), 0.0])


@patch.object(Horizon, "_plan", autospec=True, side_effect=Horizon._plan)
def test_it_plans_again_as_time_passes(plan: Mock) -> None:
    loader, progress = begun(1.0)
    for now_s in (50.1, 50.2):
        loader.next_stream(progress, facts(now_s))
    assert plan.call_count == 1
    loader.next_stream(progress, facts(50.26))
    assert plan.call_count == 2
