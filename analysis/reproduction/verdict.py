"""When figures confirm a claim, by the claim's statistic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from kvferry.analysis.reproduction.paper import Claim


def over_paper(claim: Mapping[str, Any]) -> list[float]:
    """Our figure over the nearer end of the printed interval, 1 inside of it; of a sweep either end over its own.
    None for what we or the paper do not have."""
    if claim["statistic"] == "sweep":
        return [
            claim[f"ours_{end}"] / claim[f"paper_{end}"]
            for end in ("low", "high")
            if claim[f"paper_{end}"] and claim[f"ours_{end}"] is not None
        ]
    return [] if claim["ours"] is None else _of_interval([claim["ours"]], claim)


def ranges_over_paper(claim: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The least and the most of them over the seeds."""
    if claim["statistic"] == "sweep":
        ranges = [(claim[f"ours_{end}_range"], claim[f"paper_{end}"]) for end in ("low", "high")]
        return [(ends[0] / paper, ends[1] / paper) for ends, paper in ranges if ends is not None and paper]
    least_most = _of_interval(claim["ours_range"] or (), claim)
    return [(least_most[0], least_most[1])] if least_most else []


def _of_interval(ours: Iterable[float], claim: Mapping[str, Any]) -> list[float]:
    """Nothing where the nearer end is zero."""
    low, high = claim["paper_low"], claim["paper_high"]
    ends = [(one, low if one < low else min(one, high)) for one in ours]
    return [one / end for one, end in ends] if all(end for _, end in ends) else []


Verdict = Literal["hit", "miss", "measured", "not_applicable"]
TOLERANCE = 0.15


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Our answer to a claim with one seed: one figure, and its range over the cases. `complete`: every run behind it is
    done."""

    value: float
    low: float
    high: float
    complete: bool = True


def median_of(figures: Sequence[Figure]) -> Figure:
    """The median over seeds of the figure, and of either end of its range."""
    return Figure(
        value=median(figure.value for figure in figures),
        low=median(figure.low for figure in figures),
        high=median(figure.high for figure in figures),
        complete=all(figure.complete for figure in figures),
    )


def verdict_of(claim: Claim, figures: Sequence[Figure]) -> Verdict:
    """The verdict on a claim, from a figure for each seed; "not_applicable" without any.

    value, mean   the median within 15 % of the printed interval
    sweep         the median low end within 15 % of the printed low end, and the median high end of the high end
    bound         with every seed a figure other than zero of completed runs, inside the printed interval
    measured      no verdict: the printed figure belongs to hardware that is not here
    """
    if not figures:
        return "not_applicable"
    if claim.statistic == "measured":
        return "measured"
    judged = figures if claim.statistic == "bound" else [median_of(figures)]
    return "hit" if all(hits(claim, figure) for figure in judged) else "miss"


def hits(claim: Claim, figure: Figure) -> bool:
    """Whether one seed's figure would hit the claim by itself."""
    if claim.statistic == "sweep":
        hit = _near(figure.low, claim.low, claim.low) and _near(figure.high, claim.high, claim.high)
    elif claim.statistic == "bound":
        hit = figure.value != 0 and claim.low <= figure.value <= claim.high
    else:
        hit = _near(figure.value, claim.low, claim.high)
    return hit and figure.complete


def _near(ours: float, low: float, high: float) -> bool:
    return low - TOLERANCE * abs(low) <= ours <= high + TOLERANCE * abs(high)
