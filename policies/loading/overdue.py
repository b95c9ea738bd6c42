"""Which units the link was to have brought by now, and has not."""

from itertools import accumulate

from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class Overdue:
    """The units that a plan streams, each due when the link would bring it at the planned rate: behind a round trip and
    what the plan streams before it. Whether the link has been given a unit yet does not matter.
    """

    def __init__(self, plan: Plan, problem: LoadProblem, facts: LoadFacts) -> None:
        self._order = list(plan.stream)
        ahead_bytes = accumulate(problem.stream_bytes.ravel()[self._order].tolist())
        first_s = facts.now_s + facts.rtt_s
        self._due_s = [first_s + n_bytes / facts.planned_bytes_per_s for n_bytes in ahead_bytes]
        # How many of the order are due, and which of these had not come when last looked at.
        self._due = 0
        self._late: set[int] = set()

    def units(self, progress: LoadProgress, now_s: float) -> set[int]:
        """Returns the units that are due and not there."""
        while self._due < len(self._order) and self._due_s[self._due] < now_s:
            self._late.add(self._order[self._due])
            self._due += 1
        self._late = {unit for unit in self._late if not progress.present[unit]}
        return self._late
