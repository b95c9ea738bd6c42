"""When a figure confirms a claim, by the claim's statistic."""

from dataclasses import dataclass
from typing import Literal

from kvferry.analysis.reproduction.paper import Claim

Verdict = Literal["hit", "miss", "measured", "not_applicable"]
TOLERANCE = 0.15


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Our answer to a claim: one figure, and its range over the cases. `complete`: every run behind it is done."""

    value: float
    low: float
    high: float
    complete: bool = True


def verdict_of(claim: Claim, figure: Figure | None) -> Verdict:
    """The verdict on a claim; "not_applicable" without a figure.

    value, mean   within 15 % of the printed interval
    sweep         its low end within 15 % of the printed low end, and its high end of the high end
    bound         a figure other than zero of completed runs, inside the printed interval
    measured      no verdict: the printed figure belongs to hardware that is not here
    """
    if figure is None:
        return "not_applicable"
    if claim.statistic == "measured":
        return "measured"
    if claim.statistic == "sweep":
        hit = _near(figure.low, claim.low, claim.low) and _near(figure.high, claim.high, claim.high)
    elif claim.statistic == "bound":
        hit = figure.value != 0 and claim.low <= figure.value <= claim.high
    else:
        hit = _near(figure.value, claim.low, claim.high)
    return "hit" if hit and figure.complete else "miss"


def _near(ours: float, low: float, high: float) -> bool:
    return low - TOLERANCE * abs(low) <= ours <= high + TOLERANCE * abs(high)
