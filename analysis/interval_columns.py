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


def lacking_intervals(frame: pd.DataFrame, figure: str, by: str | None) -> list[str]:
    """Returns which series, of one value of `by` each, have no intervals of the figure where others have them: beside a
    band they look as if they were known exactly, which a picture has to contradict."""
    least = f"{LEAST}{figure}"
    if by is None or least not in frame or frame[least].isna().all():
        return []
    without = frame[least].isna().groupby(frame[by], sort=False).all()
    return [str(name) for name, lacks in without.items() if lacks]


def ends_of(frame: pd.DataFrame, figure: str) -> tuple[pd.Series, pd.Series]:
    """Returns both ends of the figure's interval at each point: the figure itself where it has none."""
    low, high = (frame.get(f"{end}{figure}", frame[figure]).fillna(frame[figure]) for end in (LEAST, MOST))
    return low, high


def columns_of(intervals: Mapping[str, Range]) -> dict[str, float]:
    """The ends of the intervals of the figures that a table of points has them of."""
    ends = {key: intervals[key] for key in _FIGURES if key in intervals}
    return {f"{end}{key}": both[n] for key, both in ends.items() for n, end in enumerate((LEAST, MOST))}
