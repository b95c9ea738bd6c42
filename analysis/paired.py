"""Systems beside each other, point by point: at how many of the same points one is better, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis.axis_values import columns_under
from kvferry.analysis.compared import columns_of
from kvferry.analysis.figures import less_is_better
from kvferry.analysis.interval_columns import ends_of
from kvferry.analysis.repeats import Range
from kvferry.analysis.variants import VARIANT
from kvferry.specs import human
from kvferry.traces.chance import Source, generator

if TYPE_CHECKING:
    import pandas as pd

# The share of resampled medians that lie in their interval, and how many are drawn.
LEVEL, DRAWS = 0.95, 2000
# Beside fewer courses of chance, an interval would say nothing.
LEAST_COURSES = 5
# Systems of a study; more have too many pairs to read.
_MOST_SYSTEMS = 6


@dataclass(frozen=True)
class Paired:
    """``better`` beats ``worse`` at ``ahead`` of ``points`` points that differ in nothing but the system, by ``median``
    (0.04: its figure is 4 % better). ``interval``: of that median, over ``courses`` seeds and links; None: they are too
    few. ``at_less``: in what the better one is worse in quality, in words; "": nothing is known that it is.
    ``meeting``: at how many points the 80 % intervals of both meet, where at least one has one. ``share``: of all
    samples of what is not known exactly, in how many the better one's median is better; None: not worked out."""

    metric: str
    better: str
    worse: str
    points: int
    ahead: int
    median: float
    courses: int
    interval: tuple[float, float] | None
    at_less: str
    # At how many points both have the same figure.
    level: int = 0
    meeting: int = 0
    share: float | None = None
    # Of systems that are level at all points: in which figure they differ most, and by what; "": in none.
    apart: str = ""
    # Names what differs between its courses of chance.
    of: str = "seeds and links"

    def __str__(self) -> str:
        if self.level == self.points:
            both = f"{self.better}{self.at_less} and {self.worse}"
            return f"{both} are level at {self.level} of {self.points} points, by {self.metric}{self.apart}"
        known = f"; their 80 % intervals meet at {self.meeting}" if self.meeting else ""
        if self.share is not None:
            known = f"; in {human.percent(self.share)} of all samples of what is not known exactly"
        over = f"{self.ahead} of {self.points} points ({self.ahead / self.points:.0%}{known})"
        gain = f"{self.metric} by {self.median:.1%} in the median"
        found = f"{self.better}{self.at_less} beats {self.worse} at {over}, {gain}"
        behind = self.points - self.ahead - self.level
        if self.ahead == behind and self.share is None:
            found = f"{self.better}{self.at_less} and {self.worse} are level: {over} each, {gain} for {self.better}"
        if self.interval is None:
            few = f"no interval: {self.courses} {self.of}, {LEAST_COURSES} at least"
            return f"{found} ({few})" if self.courses > 1 else found
        low, high = self.interval
        return f"{found} ({low:.1%} to {high:.1%}: 95 % by bootstrap over {self.courses} {self.of})"


def paired(points: pd.DataFrame, metric: str, axes: Sequence[str], link: str = "") -> list[Paired]:
    """Returns every pair of a study's variants, or else of its systems, by their points that are done, the better one
    of each first; none where neither is an axis. `link`: what seeds vary of it, in words."""
    which = VARIANT if VARIANT in axes else "system"
    if which not in axes or metric not in points:
        return []
    done = points[(points["outcome"] == "done") & points[metric].gt(0)]
    systems = list(dict.fromkeys(done[which]))
    if len(systems) > _MOST_SYSTEMS:
        return []
    settings = (column for key in (*axes, "seed") if key != which for column in columns_under(key, done.columns))
    same = list(dict.fromkeys(settings)) or ["outcome"]
    policies = [column for column in same if column.startswith("policies.")]
    by_chance = [column for column in same if column in _DRAWN]
    quality = {
        key: done.groupby(which)[key].median().dropna().to_dict() if key in done else {}
        for key in ("kv_relative_error", "attended_share", "assisted_ratio")
    }
    low, high = ends_of(done, metric)
    done = done.assign(
        **{_PLACE: _joined(done, same), _COURSE: _joined(done, by_chance) if by_chance else "", _LOW: low, _HIGH: high}
    )
    of = f"seeds{link}" if by_chance == ["seed"] else "seeds and links"
    found = []
    for pair in combinations(systems, 2):
        rows = _at_every_value(done[done[which].isin(pair)], which, policies)
        if len(rows) > done[which].isin(pair).sum():
            rows = rows.assign(**{_PLACE: _joined(rows, same)})
        figures = [
            dict(zip(of[_PLACE], zip(of[metric], of[_LOW], of[_HIGH], strict=True), strict=True))
            for of in (rows[rows[which] == one] for one in pair)
        ]
        course = dict(zip(rows[_PLACE], rows[_COURSE], strict=True))
        one = _pair(metric, pair, figures, course, quality)
        if one is not None and one.level == one.points:
            one = replace(one, apart=_apart(rows, which, metric, (one.better, one.worse)))
        found.append(one)
    return [replace(one, of=of) for one in found if one is not None]


def _apart(rows: pd.DataFrame, which: str, metric: str, pair: tuple[str, str]) -> str:
    """Returns in words in which of a comparison's figures the medians of two systems differ most; "" in none."""
    columns = columns_of([set(rows.columns[rows.notna().any()])], metric)
    keys = [key for key in columns if key in rows and less_is_better(key) is not None]
    medians = rows[rows[which].isin(pair)].groupby(which)[keys].median()
    ratios = {
        key: abs(float(np.log(medians[key][pair[0]] / medians[key][pair[1]])))
        for key in keys
        if (medians[key] > 0).all()
    }
    most = max(ratios, key=ratios.__getitem__, default=None)
    if most is None or ratios[most] < _NEARLY_LEVEL:
        return ""
    one, other = (human.of_unit(most)(medians[most][name]) for name in pair)
    return f"; they differ most by {most}, {one} against {other} in the median"


# As a logarithm: 1 %.
_NEARLY_LEVEL = 0.01
# Settings that give a point another course of chance. Round trips, rates and scales change one and the same course.
_DRAWN = ("seed", "link.trace", "link.instance", "link.offset", "link.offset_s")
# Columns of a point's settings as one text, and of those among them that chance draws.
_PLACE, _COURSE = "(place)", "(course)"
# Both ends of the figure's interval, the figure itself where it has none.
_LOW, _HIGH = "(low)", "(high)"


def _joined(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Returns the values of these columns as one text: a setting may be of several types, and a missing one equals
    itself."""
    import pandas as pd

    return pd.Series(
        ["|".join(map(str, values)) for values in rows[list(columns)].itertuples(index=False)], rows.index, dtype=object
    )


def _at_every_value(rows: pd.DataFrame, which: str, policies: Sequence[str]) -> pd.DataFrame:
    """Returns the points of two systems, those of one that lacks a policy at each value that the other has of it."""
    import pandas as pd

    for column in policies:
        lacks = rows.groupby(which)[column].transform("count") == 0
        if lacks.any() and not lacks.all():
            values = pd.DataFrame({column: rows[column].dropna().unique()})
            rows = pd.concat([rows[~lacks], rows[lacks].drop(columns=column).merge(values, how="cross")])
            rows = rows.reset_index(drop=True)
    return rows


def _pair(
    metric: str,
    names: tuple[str, str],
    figures: Sequence[Mapping[str, tuple[float, float, float]]],
    course: Mapping[str, str],
    quality: Mapping[str, Mapping[Any, float]],
) -> Paired | None:
    both = [place for place in figures[0] if place in figures[1]]
    if not both:
        return None
    # How much better the first one is.
    gains = np.log([figures[1][place][0] / figures[0][place][0] for place in both])
    if not less_is_better(metric):
        gains = -gains
    if (np.median(gains), (gains > 0).sum()) < (0, (gains < 0).sum()):
        gains, names = -gains, (names[1], names[0])
    courses: dict[str, list[float]] = {}
    for place, gain in zip(both, gains, strict=True):
        courses.setdefault(course[place], []).append(gain)
    median = _share(metric, float(np.median(gains)))
    ahead = int((gains > 0).sum())
    interval = _interval(metric, list(courses.values())) if len(courses) >= LEAST_COURSES else None
    at_less, level = _at_less(*names, quality), int((gains == 0).sum())
    meeting = sum(_meet(figures[0][place][1:], figures[1][place][1:]) for place in both)
    return Paired(metric, *names, len(both), ahead, median, len(courses), interval, at_less, level, meeting)


def _meet(one: Range, other: Range) -> bool:
    """Whether which of two figures is better is not known by their intervals, where at least one has one."""
    return (one[0] < one[1] or other[0] < other[1]) and one[0] <= other[1] and other[0] <= one[1]


def _at_less(better: str, worse: str, quality: Mapping[str, Mapping[Any, float]]) -> str:
    parts = []
    errors, shares = quality["kv_relative_error"], quality["attended_share"]
    if errors.get(better, 0.0) > 1.5 * errors.get(worse, 0.0) + 0.01:
        parts.append(f"KV error {errors[better]:.2g}, not {errors.get(worse, 0.0):.2g}")
    if shares.get(better, 1.0) < 0.99 * shares.get(worse, 1.0):
        parts.append(f"{shares[better]:.0%} of the tokens attended to, not {shares.get(worse, 1.0):.0%}")
    kept = quality["assisted_ratio"]
    if kept.get(better, 1.0) < 0.99 * kept.get(worse, 1.0):
        parts.append(f"{kept[better]:.0%} of the prompt kept, not {kept.get(worse, 1.0):.0%}")
    return f" ({', '.join(parts)})" if parts else ""


def _share(metric: str, gain: float) -> float:
    """Returns how much of the other's time is saved, or by how much its rate is higher."""
    return float(-np.expm1(-gain) if less_is_better(metric) else np.expm1(gain))


def _interval(metric: str, courses: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns where the median lies over courses of chance drawn with replacement, each with all of its points."""
    chance, n = generator(Source.STUDY_SAMPLES, 0), len(courses)
    parts = [np.asarray(course) for course in courses]
    medians = [np.median(np.concatenate([parts[k] for k in chance.integers(n, size=n)])) for _ in range(DRAWS)]
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _share(metric, float(low)), _share(metric, float(high))
