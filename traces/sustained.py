"""Decoding without a break: rates over time as they were measured, and when a device that warms up slows down."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from kvferry.specs.base import Spec
from kvferry.specs.units import Count

# A device throttles when its rate first falls below this share of the one that it began with.
THROTTLED_SHARE = 0.9
# The throttled rate is the mean of what follows this much time, by which the measured series have settled.
SETTLED_S = 120.0


class SeriesSpec(Spec):
    """What a series ran on, as our scenario has it, and the energy per token that the battery gave. `measured`: what it
    really ran on, where that is another engine."""

    device: str
    engine: str
    measured: str = ""
    model: str
    weights: str
    context: Count
    output: Count
    joules_per_token: float
    fitted: str = ""
    source: str


@dataclass(frozen=True)
class Rates:
    """Tokens/s over time: means of pieces of `piece_s` each, from the beginning on."""

    piece_s: float
    per_s: np.ndarray

    @property
    def cold_per_s(self) -> float:
        """The rate that it begins with."""
        return float(self.per_s[0])

    @property
    def throttled_per_s(self) -> float:
        """The mean of what follows once it has settled; of a series that is not twice as long, of its second half."""
        settled = min(int(SETTLED_S / self.piece_s), len(self.per_s) // 2)
        return float(self.per_s[settled:].mean())

    @property
    def throttled_after_s(self) -> float | None:
        """When the rate first fell below the share of the first one that counts as throttled, between the middles of
        two pieces; None: it did not, or it was better again afterwards, as behind other work on the device."""
        least = THROTTLED_SHARE * self.cold_per_s
        if not self.throttled_per_s < least:
            return None
        first = int(np.argmax(self.per_s < least))
        before, after = self.per_s[first - 1], self.per_s[first]
        return self.piece_s * (first - 0.5 + float((before - least) / (before - after)))

    @property
    def middles_s(self) -> np.ndarray:
        return self.piece_s * (np.arange(len(self.per_s)) + 0.5)


def load_series(folder: Path) -> dict[str, tuple[SeriesSpec, Rates]]:
    """What was measured, by name, from sustained.yaml and sustained.csv."""
    specs = yaml.safe_load((folder / "sustained.yaml").read_text(encoding="utf-8"))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in specs}
    with (folder / "sustained.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["series"]].append((float(row["until_s"]), float(row["tokens_per_s"])))
    return {
        name: (SeriesSpec.model_validate(spec), Rates(found[name][0][0], np.array([rate for _, rate in found[name]])))
        for name, spec in specs.items()
    }
