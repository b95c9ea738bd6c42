"""Ours over the paper's, claim by claim, as verdicts compare them."""

from collections.abc import Iterable, Mapping
from typing import Any


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
