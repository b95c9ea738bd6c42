"""A scenario run several times for real: medians, their ranges, and which differences lie inside the noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvferry.pipelines.record import Run
from kvferry.specs.scenario import Scenario

Metrics = Mapping[str, float]
# Smallest and largest of the runs.
Range = tuple[float, float]


@dataclass(frozen=True)
class Repeats:
    """The runs of one system, with the metrics and the scenario of each."""

    runs: Sequence[Run]
    metrics: Sequence[Metrics]
    scenarios: Sequence[Scenario] = ()

    @property
    def by_seed(self) -> dict[int, tuple[str, dict[str, float]]]:
        """Outcome and metrics of each run by its seed."""
        rows = zip(self.scenarios, self.runs, self.metrics, strict=True)
        return {one.seed: (run.outcome, dict(metrics)) for one, run, metrics in rows}

    @property
    def medians(self) -> dict[str, float]:
        """The median over the runs of every metric that all of them have."""
        shared = set.intersection(*(set(figures) for figures in self.metrics))
        return {key: float(np.median([m[key] for m in self.metrics])) for key in self.metrics[0] if key in shared}

    @property
    def ranges(self) -> dict[str, Range]:
        return {key: (min(m[key] for m in self.metrics), max(m[key] for m in self.metrics)) for key in self.medians}

    def typical(self, headline: str) -> int:
        """Which run stands for all in pictures: the one of the median headline, of two the first in order of it; a run
        that failed before any other, so that its outcome is seen."""
        failed = [n for n, run in enumerate(self.runs) if run.outcome != "done"]
        if failed or not all(headline in figures for figures in self.metrics):
            return failed[0] if failed else 0
        order = sorted(range(len(self.runs)), key=lambda n: self.metrics[n][headline])
        return order[(len(order) - 1) // 2]


def within_noise(ranges: Mapping[str, Range]) -> set[str]:
    """The systems, given in order, whose range meets that of one before: which of the two comes first is not known."""
    return {
        name
        for n, (name, (low, high)) in enumerate(ranges.items())
        if any(before[0] <= high and before[1] >= low for before in list(ranges.values())[:n])
    }
