"""What the processor, the link and local storage take, at the rates that a load sees."""

from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.throughput import Throughput

# Time constant of the observed rates.
_MEMORY_S = 0.5
# The slowest rate to plan with, as a share of the planned one.
_LEAST_SHARE = 1e-4


class PathRates:
    """Lists are by path: nominal seconds of the processor, bytes of the link, bytes of storage."""

    def __init__(self, facts: LoadFacts) -> None:
        planned = (facts.planned_speed, facts.planned_bytes_per_s, facts.planned_read_bytes_per_s)
        self._paths = [Throughput(rate, _MEMORY_S, _LEAST_SHARE * rate) for rate in planned]

    def look(self, progress: LoadProgress, facts: LoadFacts) -> bool:
        """Update the rates. Returns whether they may have changed."""
        if not self._paths[0].due(facts.now_s):
            return False
        seen = (
            (progress.computed_s, progress.units_computing > 0 and not facts.starting_s),
            (progress.streamed_bytes, progress.units_streaming > 0),
            (progress.read_bytes, progress.units_reading > 0),
        )
        for path, (done, busy) in zip(self._paths, seen, strict=True):
            path.look(facts.now_s, done, busy)
        return True

    def seconds(self) -> list[float]:
        """What a unit of each path's amount takes; forever where there is no such path."""
        return [1.0 / rate if (rate := path.per_s) else 1e12 for path in self._paths]

    def ahead_s(self, progress: LoadProgress, facts: LoadFacts) -> list[float]:
        """When each path has done what it has already taken."""
        compute, stream, read = self.seconds()
        return [
            facts.starting_s + progress.computing_s * compute,
            facts.rtt_s + progress.streaming_bytes * stream,
            progress.reading_bytes * read,
        ]
