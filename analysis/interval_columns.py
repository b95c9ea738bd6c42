"""Intervals of figures as columns of a table of points."""

from collections.abc import Callable, Mapping

from kvferry.analysis.figures import RATES
from kvferry.analysis.repeats import Range
from kvferry.pipelines.record import Run
from kvferry.specs.scenario import Scenario

# Says of a finished run between which ends its figures lie, by metric; none where nothing is known.
IntervalsOf = Callable[[Scenario, Run], Mapping[str, Range]]
# Before a figure's name: both ends of its interval.
LEAST, MOST = "low_", "high_"
# Figures that have such columns.
_FIGURES = ("ttft_s", "throughput_tokens_per_s", *RATES, "tpot_s")
# Tells users what the columns are.
COLUMNS = f"{LEAST}... and {MOST}...: ends of 80 % intervals (docs/intervals.md)"


def columns_of(intervals: Mapping[str, Range]) -> dict[str, float]:
    """The ends of the intervals of the figures that a table of points has them of."""
    ends = {key: intervals[key] for key in _FIGURES if key in intervals}
    return {f"{end}{key}": both[n] for key, both in ends.items() for n, end in enumerate((LEAST, MOST))}
