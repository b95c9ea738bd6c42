"""Ferry: compute from the front of the chain, stream from its back, and race for what is last."""

from kvferry.policies.loading.chain import chain_order
from kvferry.policies.loading.loader import Compute, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class Ferry:
    """Both paths work towards each other in one order of all units, so neither ever waits and no rate needs to
    be known. When they have met, a free path doubles what the other has taken last, if it would have it sooner.
    """

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._order: list[int] = chain_order(problem).tolist()
        self._front, self._back = 0, len(self._order)
        self._compute_s: list[float] = problem.compute_s.ravel().tolist()
        self._bytes: list[float] = problem.stream_bytes.ravel().tolist()

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        if self._front < self._back:
            self._front += 1
            return Compute((self._order[self._front - 1],))
        # The paths have met. What the link took last comes last, behind all that is on its way.
        while self._front < len(self._order):
            unit = self._order[self._front]
            here_s = self._compute_s[unit] / (facts.compute_speed or 1.0)
            if progress.present[unit]:
                self._front += 1
            elif here_s < facts.rtt_s + progress.streaming_bytes / _rate(facts) and progress.computable(unit):
                self._front += 1
                return Compute((unit,))
            else:
                break
        return None

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        if self._front < self._back:
            self._back -= 1
            return Stream((self._order[self._back],))
        unit = self._order[self._back - 1] if self._back else None
        if unit is None or not progress.computing[unit] or progress.streaming[unit]:
            return None
        here_s = progress.computing_s / (facts.compute_speed or 1.0)
        if facts.rtt_s + (progress.streaming_bytes + self._bytes[unit]) / _rate(facts) < here_s:
            return Stream((unit,))
        return None


def _rate(facts: LoadFacts) -> float:
    """Bytes per second, never 0: in an outage everything takes very long."""
    rate = facts.goodput_bytes_per_s
    return max(facts.planned_bytes_per_s if rate is None else rate, 1e-9)
