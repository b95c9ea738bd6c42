"""Intervals of figures as columns of a table of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kvferry.analysis.figures import RATES
from kvferry.analysis.repeats import Range
from kvferry.pipelines.record import Run
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

# Says of a finished run between which ends its figures lie, by metric; none where nothing is known.
IntervalsOf = Callable[[Scenario, Run], Mapping[str, Range]]
# Before a figure's name: both ends of its interval.
LEAST, MOST = "low_", "high_"
# Figures that have such columns.
_FIGURES = ("ttft_s", "throughput_tokens_per_s", *RATES, "tpot_s", "energy_j")
# Tells users what the columns are.
COLUMNS = f"{LEAST}... and {MOST}...: ends of 80 % intervals (docs/intervals.md)"


def for_all_or_none(frame: pd.DataFrame, figure: str, by: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Returns the rows without the figure's intervals where some series, of one value of `by` each, have none, and
    which these are: a band around one line alone would say that the others are known exactly."""
    ends = [f"{end}{figure}" for end in (LEAST, MOST)]
    if by is None or not {*ends} <= {*frame.columns} or frame[ends[0]].isna().all():
        return frame, []
    without = frame[ends[0]].isna().groupby(frame[by], sort=False).all()
    lacking = [str(name) for name, lacks in without.items() if lacks]
    return (frame.drop(columns=ends) if lacking else frame), lacking


def columns_of(intervals: Mapping[str, Range]) -> dict[str, float]:
    """The ends of the intervals of the figures that a table of points has them of."""
    ends = {key: intervals[key] for key in _FIGURES if key in intervals}
    return {f"{end}{key}": both[n] for key, both in ends.items() for n, end in enumerate((LEAST, MOST))}
