"""One figure of both worlds: the modelled one, what was measured, how far off it is, and how it is shown."""

from collections.abc import Mapping, Sequence
from statistics import median, stdev
from typing import Any

from kvferry.specs import human

# Stands behind an error where both figures are not of one thing.
MARK = "~"


def figure_beside(simulated: float, measured: Sequence[float]) -> dict[str, float | None]:
    """Returns ``simulated``, ``measured`` (the median), ``error`` = simulated / measured - 1, and ``spread``, the
    standard deviation of the measured ones over their median (None for a single run)."""
    middle = median(measured)
    return {
        "simulated": simulated,
        "measured": middle,
        "error": simulated / middle - 1 if middle else (0.0 if simulated == middle else None),
        "spread": stdev(measured) / middle if len(measured) > 1 and middle else None,
    }


def shown_beside(key: str, found: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the same as a table has it, in the unit of the metric `key`; None: it is not known."""
    figure, error = human.of_unit(key), percent(found["error"])
    return {
        "simulated": None if found["simulated"] is None else figure(found["simulated"]),
        "measured": figure(found["measured"]),
        "error": error if error is None or found.get("alike", True) else f"{error} {MARK}",
        "spread": percent(found["spread"]),
    }


def percent(share: float | None) -> str | None:
    """Returns a share in percent; None stays None."""
    return None if share is None else f"{100 * share:.1f} %"
