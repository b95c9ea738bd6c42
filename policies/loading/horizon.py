"""Ferry with a receding horizon: it plans every so often by a forecast of the link, with its uncertainty."""

from math import exp, sqrt
from typing import Annotated

import numpy as np
from pydantic import Field

from kvferry.policies.loading.bound import column_labels
from kvferry.policies.loading.ferry import Ferry, needed_streams
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.plan import computing_order, first_asked
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress

# How often it plans, and the step in which rates are seen.
_RECEDES_S, _STEP_S = 0.25, 0.05
# The time constant of the rates' variance, and for how long a rate is taken to last: that of Ferry's mean.
_MEMORY_S = 0.5


class Horizon(Ferry):
    """Rates are taken for an AR(1) process. The mean rate over a horizon H then has the variance of one rate times
    2 x 0.5 s / H, where that is less. Of the variance the half below the mean counts: a link that gets faster brings
    nothing too late.

    The paths are expected to meet where they do at the mean. What the processor needs before that is streamed as late
    as it would still come in time at the mean rate less so many `deviations`. Until then the link brings the end of the
    order, which no later view of the link makes a mistake of: a link that fails has brought less in vain.
    """

    def __init__(self, deviations: Annotated[float, Field(ge=0, le=10)] = 1.0) -> None:
        super().__init__()
        self._deviations = deviations

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._variance = self._step_bytes = 0.0
        self._planned_s = self._step_s = facts.now_s
        self._labels = column_labels(problem)
        # When the link must begin to bring each of the needed units and all behind it, in their order.
        self._latest_s: list[float] = []
        super().start(problem, facts)

    def _look(self, progress: LoadProgress, facts: LoadFacts) -> None:
        elapsed_s = facts.now_s - self._step_s
        if elapsed_s >= _STEP_S:
            seen_bytes_per_s = (progress.streamed_bytes - self._step_bytes) / elapsed_s
            newest, less = 1 - exp(-elapsed_s / _MEMORY_S), min(0.0, seen_bytes_per_s - self._link.per_s)
            self._variance += newest * (less**2 - self._variance)
            self._step_s, self._step_bytes = facts.now_s, progress.streamed_bytes
        super()._look(progress, facts)
        if facts.now_s - self._planned_s >= _RECEDES_S:
            self._plan(progress, facts)

    def _plan(self, progress: LoadProgress, facts: LoadFacts) -> None:
        """Order what is needed by when it is asked for, each column from its top down, and find how long that can
        wait."""
        self._planned_s, self._planned_exchange = facts.now_s, self._exchange
        planned, absent = self._expected(progress, facts)
        needed = needed_streams(self._problem, planned, absent)
        asked_s = self._asked_s(planned, absent & ~planned, progress, facts).ravel()[needed]
        order = np.argsort(asked_s, kind="stable")
        needed, asked_s = needed[order], asked_s[order]
        takes_s = self._problem.stream_bytes.ravel()[needed] / self._surely_per_s(asked_s)
        all_take_s = takes_s.cumsum()
        latest_s = np.minimum.accumulate((asked_s - all_take_s)[::-1]) + (all_take_s - takes_s)[::-1]
        self._needed, self._latest_s = needed[::-1].tolist(), (facts.now_s + latest_s).tolist()

    def _asked_s(
        self, planned: np.ndarray, streamed: np.ndarray, progress: LoadProgress, facts: LoadFacts
    ) -> np.ndarray:
        """In how long the processor first waits for one of the `streamed` units of each column [T, L, C]: it computes
        those that are `planned`."""
        begun_s = facts.starting_s * self._processor.per_s + progress.computing_s
        order = computing_order(self._problem, planned, self._labels)
        work_s = self._problem.compute_s.ravel()[order]
        begins_s = np.full(planned.shape, np.inf)
        begins_s.ravel()[order] = (begun_s + work_s.cumsum() - work_s) / self._processor.per_s
        asked_s = np.where(streamed, first_asked(self._problem, begins_s, np.inf), np.inf)
        return np.broadcast_to(asked_s.min(axis=1, keepdims=True), planned.shape)

    def _surely_per_s(self, horizon_s: np.ndarray) -> np.ndarray:
        """The mean rate over each horizon, less the deviations."""
        share = np.sqrt(np.minimum(1.0, 2 * _MEMORY_S / np.maximum(horizon_s, 1e-6)))
        return np.maximum(self._link.per_s - self._deviations * sqrt(self._variance) * share, self._link.least_per_s)

    def _arriving_bytes(self, work_s: np.ndarray, facts: LoadFacts) -> np.ndarray:
        return self._exchange * work_s

    def _next_needed(self, progress: LoadProgress, facts: LoadFacts) -> int | None:
        # What would be due before the next plan is due now.
        free_s = facts.now_s + _RECEDES_S + facts.rtt_s + progress.streaming_bytes / self._link.per_s
        while self._needed and (free_s >= self._latest_s[-1] or not progress.absent(self._needed[-1])):
            self._latest_s.pop()
            unit = self._needed.pop()
            if progress.absent(unit):
                return unit
        return None
