"""The order of systems, best first, as far as intervals let it be known."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from kvferry.analysis.figures import less_is_better
from kvferry.analysis.intervals import SURE, beats
from kvferry.analysis.tables import UNSURE
from kvferry.api.result import Result
from kvferry.specs import human


@dataclass(frozen=True, eq=False)
class Order:
    """The order of results by one metric."""

    results: Mapping[str, Result]
    metric: str

    @cached_property
    def beats(self) -> dict[str, dict[str, float]]:
        """By system and other system the share of samples in which it has the better figure of the metric, where one of
        the two has an interval there. What both rest on is the same for both in each sample."""
        key = self.metric
        known = {
            name: (one.metrics[key], () if one.sureness is None else one.sureness.effects)
            for name, one in self.results.items()
            if one.outcome == "done" and one.metrics.get(key, 0) > 0
        }
        open_to_doubt = {name for name in known if key in self.results[name].intervals}
        return {
            one: {
                other: beats(key, known[one], known[other])
                for other in known
                if other != one and open_to_doubt & {one, other}
            }
            for one in known
            if open_to_doubt
        }

    @property
    def ranked(self) -> list[str]:
        """Systems of which it is known how sure their order is, best first."""
        sign = 1 if less_is_better(self.metric) else -1
        return sorted(self.beats, key=lambda name: sign * self.results[name].metrics[self.metric])

    @property
    def unsure(self) -> set[str]:
        """Systems that one above them beats in too few samples."""
        ranked = self.ranked
        return {
            name
            for n, name in enumerate(ranked)
            if any(self.beats[above].get(name, 1.0) < SURE for above in ranked[:n])
        }

    def notes(self, *, several: bool) -> list[str]:
        """Says how sure it is; `several`: results are of several runs each."""
        ranked = self.ranked
        pairs = [
            f"{one} beats {other} in {human.percent(self.beats[one][other])}"
            for one, other in pairwise(ranked)
            if other in self.beats[one]
        ]
        by = ", found at the first seed," if several else ","
        return [f"of all samples of what is not known exactly{by} {'; '.join(pairs)}. {UNSURE}"] if pairs else []
