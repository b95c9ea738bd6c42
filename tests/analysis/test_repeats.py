"""Several real runs of a scenario: medians, ranges, and differences inside the noise."""

import pytest

from kvferry.analysis.repeats import Repeats, within_noise
from kvferry.pipelines.record import Run


def repeats(*ttft_s: float, failed: int | None = None) -> Repeats:
    runs = [Run(outcome="infeasible" if n == failed else "done") for n in range(len(ttft_s))]
    return Repeats(runs, [{"ttft_s": value, "requests": 1.0} for value in ttft_s])


def test_medians_and_ranges_of_every_metric() -> None:
    found = repeats(3.0, 1.0, 2.5)
    assert found.medians == {"ttft_s": 2.5, "requests": 1.0}
    assert found.ranges == {"ttft_s": (1.0, 3.0), "requests": (1.0, 1.0)}


def test_a_metric_that_one_run_lacks_has_no_median() -> None:
    found = Repeats([Run(outcome="done")] * 2, [{"a": 1.0, "b": 2.0}, {"a": 3.0}])
    assert found.medians == {"a": 2.0}


@pytest.mark.parametrize(
    ("values", "failed", "typical"),
    [((3.0, 1.0, 2.5), None, 2), ((3.0, 1.0, 2.5, 2.0), None, 3), ((1.0,), None, 0), ((3.0, 1.0, 2.5), 1, 1)],
)
def test_the_run_that_stands_for_all(values: tuple[float, ...], failed: int | None, typical: int) -> None:
    assert repeats(*values, failed=failed).typical("ttft_s") == typical


def test_ranges_that_meet_one_before_are_noise() -> None:
    ranges = {"a": (1.0, 2.0), "b": (1.9, 3.0), "c": (3.5, 4.0), "d": (3.9, 5.0), "e": (6.0, 7.0), "f": (0.1, 0.5)}
    # b cannot be told from a, nor d from c, which is clearly behind both; e and f meet none.
    assert within_noise(ranges) == {"b", "d"}
    assert within_noise({}) == set()
