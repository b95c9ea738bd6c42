"""How far steps that storage bounds are off: printed cells whose method or model a fit of the profile left out."""

import csv
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvferry.analysis.reproduction.left_out import Spread
from kvferry.analysis.reproduction.measured_rates import RATES

STORAGE_ERRORS = RATES.with_name("storage.csv")
COLUMNS = ("storage", "device", "part", "case", "share", "log_error")
# A cell tells of storage that takes at least this share of its step.
_LEAST_SHARE = 0.5


@lru_cache(maxsize=1)
def storage_spread(path: Path = STORAGE_ERRORS) -> Spread:
    """The errors of cells that storage bounds, by method or model: a fit left all cells of one out together, so each
    weighs the same. An error is all laid on storage: as its time is a share of the step's, it is off by more than the
    step."""
    by_part: dict[str, list[float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if (share := float(row["share"])) >= _LEAST_SHARE:
                by_part.setdefault(row["part"], []).append(float(row["log_error"]) / share)
    return Spread(by_part, "steps bound by storage")


def storage_coverage(by_part: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """For each method or model, as ``coverage`` has it for devices: how many of its cells lie in intervals that the
    others make."""
    found = []
    for part, errors in by_part.items():
        others = Spread({name: sizes for name, sizes in by_part.items() if name != part}, "")
        inside = sum(abs(error) <= others.half_width() for error in errors)
        counts = {"rows": len(errors), "inside": inside, "without_interval": 0}
        found.append({"device": part, "of": "storage", **counts, "median_factor": others.factor})
    return found
