"""What encodings cost in quality: errors of the KV and of what a model says over it, measured once on a bundled model.

An indicator, not a promise: another model, another text and other questions lose more or less. ``studies/
kv_distortion.py`` measures it again.
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple


class Distortion(NamedTuple):
    """``relative_error``: root mean square of the difference, over that of the numbers. ``kl_nats``: mean divergence of
    the next-token distribution from that over the exact KV."""

    relative_error: float
    kl_nats: float


@lru_cache(maxsize=1)
def measured() -> dict[str, tuple[Distortion, ...]]:
    """The measured distortion by codec, of every level from the best on."""
    found: dict[str, list[Distortion]] = {}
    table = (files("kvferry.codecs") / "distortion.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):
        levels = found.setdefault(row["codec"], [])
        assert int(row["level"]) == len(levels), row
        levels.append(Distortion(float(row["relative_error"]), float(row["kl_nats"])))
    return {codec: tuple(levels) for codec, levels in found.items()}


def of_mixture(codec: str, shares: Mapping[int, float]) -> Distortion | None:
    """The distortion of KV whose parts came in these shares at these levels, while the rest was computed. Squared
    errors add up, and so do divergences as long as they are small. None for a codec that was not measured."""
    levels = measured().get(codec)
    if levels is None:
        return None
    square = sum(share * levels[level].relative_error ** 2 for level, share in shares.items())
    return Distortion(square**0.5, sum(share * levels[level].kl_nats for level, share in shares.items()))
