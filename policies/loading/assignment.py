"""A plan while it is carried out and changed: which path gets which unit, stage by stage."""

from collections import deque

from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import LoadProblem


class Assignment:
    """The units of a plan that no path has taken yet, by stage and path.

    A unit that was taken or moved to the other path stays in its old list and is skipped there; `computes` and
    `streams` say which path has it.
    """

    def __init__(self, plan: Plan, problem: LoadProblem) -> None:
        self._problem = problem
        self.compute_s: list[float] = problem.compute_s.ravel().tolist()
        self.stream_bytes: list[float] = problem.stream_bytes.ravel().tolist()
        self.stages = len(plan.stages)
        self.computes = bytearray(problem.units)
        self.streams = bytearray(problem.units)
        self.stage_of = [0] * problem.units
        # A unit's place in its path's order, over all stages.
        self.place_of = [0] * problem.units
        # Per stage, in order. A path takes its own units from the left; moved units leave at the right.
        self.to_stream = [deque(stage.stream) for stage in plan.stages]
        self.to_compute = [deque(stage.compute) for stage in plan.stages]
        self.units_of = [len(stage.compute) + len(stage.stream) for stage in plan.stages]
        # Per stage, what is left for each path.
        self.left = [0] * self.stages
        self.left_compute_s = [0.0] * self.stages
        self.left_stream_bytes = [0.0] * self.stages
        for k, stage in enumerate(plan.stages):
            for place, unit in enumerate(stage.compute):
                self.place_of[unit] = place
                self._enter(unit, k, compute=True)
            for place, unit in enumerate(stage.stream):
                self.place_of[unit] = place
                self._enter(unit, k, compute=False)

    def _enter(self, unit: int, k: int, *, compute: bool) -> None:
        self.stage_of[unit] = k
        self.left[k] += 1
        if compute:
            self.computes[unit] = 1
            self.left_compute_s[k] += self.compute_s[unit]
        else:
            self.streams[unit] = 1
            self.left_stream_bytes[k] += self.stream_bytes[unit]

    def take(self, unit: int) -> None:
        """The unit was taken by a path, or is no longer needed."""
        k = self.stage_of[unit]
        self.left[k] -= 1
        if self.computes[unit]:
            self.computes[unit] = 0
            self.left_compute_s[k] -= self.compute_s[unit]
        else:
            self.streams[unit] = 0
            self.left_stream_bytes[k] -= self.stream_bytes[unit]

    def give_to_link(self, unit: int) -> None:
        """Move a unit from the processor to the link, with all units above it in its column, which can no longer be
        computed. Each stays in its stage and is streamed last."""
        t, _, c = self._problem.place(unit)
        for above in range(unit, self._problem.unit(t, self._problem.layers, c), self._problem.columns_per_chunk):
            if self.computes[above]:
                k = self.stage_of[above]
                self.take(above)
                self._enter(above, k, compute=False)
                self.to_stream[k].append(above)
