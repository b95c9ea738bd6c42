"""Ferry with a receding horizon: it plans every so often by a forecast of the link, with its uncertainty."""

from math import exp, sqrt
from typing import Annotated

import numpy as np
from pydantic import Field

from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress

# How often it plans, and the step in which rates are seen.
_RECEDES_S, _STEP_S = 0.25, 0.05
# The time constant of the rates' variance, and for how long a rate is taken to last: that of Ferry's mean.
_MEMORY_S = 0.5


class Horizon(Ferry):
    """Rates are taken for an AR(1) process. The mean rate over a horizon H then has the variance of one rate times
    2 x 0.5 s / H, where that is less. What the link will have brought is planned with as that mean less so many
    `deviations`: a unit that is needed even then is needed in any case."""

    def __init__(self, deviations: Annotated[float, Field(ge=0, le=10)] = 1.0) -> None:
        super().__init__()
        self._deviations = deviations

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._variance = self._step_bytes = 0.0
        self._planned_s = self._step_s = facts.now_s
        super().start(problem, facts)

    def _look(self, progress: LoadProgress, facts: LoadFacts) -> None:
        elapsed_s = facts.now_s - self._step_s
        if elapsed_s >= _STEP_S:
            seen_bytes_per_s = (progress.streamed_bytes - self._step_bytes) / elapsed_s
            newest = 1 - exp(-elapsed_s / _MEMORY_S)
            self._variance += newest * ((seen_bytes_per_s - self._bytes_per_s) ** 2 - self._variance)
            self._step_s, self._step_bytes = facts.now_s, progress.streamed_bytes
        super()._look(progress, facts)
        if facts.now_s - self._planned_s >= _RECEDES_S:
            self._plan(progress, facts)

    def _plan(self, progress: LoadProgress, facts: LoadFacts) -> None:
        self._planned_s = facts.now_s
        super()._plan(progress, facts)

    def _arriving_bytes(self, work_s: np.ndarray, facts: LoadFacts) -> np.ndarray:
        horizon_s = np.maximum(work_s / self._speed, 1e-6)
        deviation = sqrt(self._variance) * np.sqrt(np.minimum(1.0, 2 * _MEMORY_S / horizon_s))
        arriving = np.maximum(0.0, self._bytes_per_s - self._deviations * deviation) * horizon_s
        brought: np.ndarray = np.maximum.accumulate(arriving)
        return brought
