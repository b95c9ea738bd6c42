"""SparKV: carry out a plan stage by stage, and adapt it to the observed rates of the link and the processor."""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate

from kvferry.policies.loading.assignment import Assignment
from kvferry.policies.loading.chain import chain_plan
from kvferry.policies.loading.fallback import compute_without_link
from kvferry.policies.loading.greedy import greedy_plan
from kvferry.policies.loading.loader import Compute, LinkWindow, LoadFacts, Stream
from kvferry.policies.loading.milp import milp_plan
from kvferry.policies.loading.plan import Plan, TokenDependency
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.ready import Ready
from kvferry.policies.loading.split import split_plan
from kvferry.specs.errors import pick


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


class Controller:
    """Decides what a path does that has nothing left in the current stage; considers that stage and the next.

    Both decisions compare when the two paths would have a unit, at the goodput and the compute speed seen in
    the last window (before that, the planned ones). `migration_limit` is the share of a stage's units that may
    change paths while the stage is current: IV-D limits the number to avoid oscillation, but gives no value.
    """

    def __init__(self, migration_limit: float = 0.25) -> None:
        if not 0 <= migration_limit <= 1:
            raise ValueError(f"migration_limit is {migration_limit}; it is a share of a stage's units, 0 to 1")
        self.migration_limit = migration_limit
        self._stage = 0
        self._migrated = 0

    def stream_instead(self, work: Assignment, k: int, progress: LoadProgress, facts: LoadFacts) -> int | None:
        """The last unit in stage k's computation order, if the link would bring it before the processor computes it."""
        order = work.to_compute[k]
        while order and not (work.computes[order[-1]] and progress.absent(order[-1])):
            order.pop()
        if not order or not self._may_migrate(work, k):
            return None
        unit = order[-1]
        computed_s = facts.starting_s + (progress.computing_s + work.left_compute_s[k]) / facts.seen_speed
        if self._stream_s(progress.streaming_bytes + work.stream_bytes[unit], facts) >= computed_s:
            return None
        work.give_to_link(unit)
        self._migrated += 1
        return unit

    def compute_instead(self, work: Assignment, k: int, unit: int, progress: LoadProgress, facts: LoadFacts) -> bool:
        """Whether to compute a unit that stage k gave to the link, rather than wait for the link."""
        if not self._may_migrate(work, k) or not self.computed_sooner(work, k, unit, progress, facts):
            return False
        self._migrated += 1
        return True

    def computed_sooner(self, work: Assignment, k: int, unit: int, progress: LoadProgress, facts: LoadFacts) -> bool:
        """Whether the processor would have this unit before the link has brought all of stage k that it still has."""
        computed_s = facts.starting_s + (progress.computing_s + work.compute_s[unit]) / facts.seen_speed
        return computed_s < self._stream_s(progress.streaming_bytes + work.left_stream_bytes[k], facts)

    def _stream_s(self, n_bytes: float, facts: LoadFacts) -> float:
        rate = facts.goodput_bytes_per_s
        # An outage ends some time, but when is unknown here.
        return facts.rtt_s + n_bytes / max(facts.planned_bytes_per_s if rate is None else rate, 1e-9)

    def _may_migrate(self, work: Assignment, k: int) -> bool:
        if k != self._stage:
            self._stage, self._migrated = k, 0
        return self._migrated < self.migration_limit * work.units_of[k]


# More parameters have defaults.
Planner = Callable[[LoadProblem, float], Plan]


def _milp(
    problem: LoadProblem,
    bytes_per_s: float,
    *,
    stages: int = 1,
    solver: str = "highs",
    node_limit: int | None = None,
    relative_gap: float = 1e-4,
    token_dependency: TokenDependency = "all",
) -> Plan:
    """Without a wall-clock limit: equal scenarios and seeds have equal results."""
    return milp_plan(
        problem,
        bytes_per_s,
        stages=stages,
        solver=solver,
        node_limit=node_limit,
        relative_gap=relative_gap,
        token_dependency=token_dependency,
    ).plan


SCHEDULES: dict[str, Planner] = {
    "greedy": greedy_plan,
    "greedy-literal": partial(greedy_plan, reading="literal"),
    "greedy-top-down": partial(greedy_plan, reading="top-down"),
    "greedy-last-first": partial(greedy_plan, reading="last-first"),
    "milp": _milp,
    "chain": chain_plan,
    "split": split_plan,
}


class Staged:
    """Carries out the plan of a `schedule`, made at the start for the planned rates of both paths.

    A path enters the next stage when all units of the current one were handed over to both paths: the cloud knows
    the plan and pushes, so there is no round trip between stages. Within a stage the processor takes the first
    computable unit of the order. With `adapt`, a path that has nothing left in the current stage gets work (IV-D):

    the link     prefetches the next stage's streams; then takes over from the tail of the computation order;
    the processor  computes what the current stage left to the link and is ready; then the next stage's ready work;
                   with `compute_overdue`, then what the link was to have brought by now, and what leads there, also
                   where the link has it under way. IV-D names chunks "originally assigned to streaming" and does not
                   say whether those under way are among them. It is no migration: nothing changes paths.
    """

    # Chosen as WIDE was; twice as wide is no better here, and leaves the controller less to move.
    window = LinkWindow(times=4, at_least_planned=True)

    def __init__(
        self,
        schedule: str | Planner = "greedy",
        adapt: bool = True,
        migration_limit: float = 0.25,
        compute_overdue: bool = False,
    ) -> None:
        if compute_overdue and not adapt:
            raise ValueError("compute_overdue is of the controller, which adapt: false leaves out")
        self._planner = schedule if callable(schedule) else pick("schedule", SCHEDULES, schedule)
        self.controller = Controller(migration_limit) if adapt else None
        self._compute_overdue = compute_overdue

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        plan = self._planner(problem, facts.planned_exchange)
        self._work = Assignment(plan, problem)
        self._overdue = Overdue(plan, problem, facts) if self._compute_overdue else None
        self._stage = 0
        self._ready = Ready(problem)
        # What can be computed, by (stage, place in the order): assigned to the processor; assigned to the link,
        # the one that it would stream last first.
        self._ready_here: list[tuple[int, int, int]] = []
        self._ready_there: list[tuple[int, int, int]] = []

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        self._look(progress)
        stage_of = self._work.stage_of
        unit = self._first_ready(self._ready_here, self._work.computes, progress)
        if unit is None or stage_of[unit] > self._stage:
            left_to_link = self._take_from_link(progress, facts)
            unit = unit if left_to_link is None else left_to_link
        if unit is None or stage_of[unit] > self._last_open_stage:
            return self._towards_overdue(progress, facts)
        self._work.take(unit)
        return Compute((unit,))

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        self._look(progress)
        unit = self._unit_to_stream(progress, facts)
        if unit is None:
            return None
        self._work.take(unit)
        return Stream((unit,))

    def _unit_to_stream(self, progress: LoadProgress, facts: LoadFacts) -> int | None:
        stages = range(self._stage, self._last_open_stage + 1)
        for k in stages:
            if (unit := self._next_to_stream(k, progress)) is not None:
                return unit
        if self.controller is not None:
            for k in stages:
                if (unit := self.controller.stream_instead(self._work, k, progress, facts)) is not None:
                    return unit
        return None

    def _take_from_link(self, progress: LoadProgress, facts: LoadFacts) -> int | None:
        unit = self._first_ready(self._ready_there, self._work.streams, progress)
        if unit is None or self.controller is None or self._work.stage_of[unit] > self._stage:
            return None
        return unit if self.controller.compute_instead(self._work, self._stage, unit, progress, facts) else None

    def _towards_overdue(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        late = self._overdue.units(progress, facts.now_s) if self._overdue else None
        next_one = compute_without_link(progress, late) if late else None
        if next_one is None or self.controller is None:
            return None
        (unit,) = next_one.units
        if not self.controller.computed_sooner(self._work, self._stage, unit, progress, facts):
            return None
        if self._work.computes[unit] or self._work.streams[unit]:
            self._work.take(unit)
        return next_one

    @property
    def _last_open_stage(self) -> int:
        last = self._work.stages - 1
        return self._stage if self.controller is None or self._stage == last else self._stage + 1

    def _look(self, progress: LoadProgress) -> None:
        """Go to the next stage when this one is handed over; sort what has become computable."""
        work = self._work
        while self._stage < work.stages - 1 and work.left[self._stage] == 0:
            self._stage += 1
        for unit in self._ready.news(progress):
            if work.computes[unit]:
                heappush(self._ready_here, (work.stage_of[unit], work.place_of[unit], unit))
            elif work.streams[unit]:
                heappush(self._ready_there, (work.stage_of[unit], -work.place_of[unit], unit))

    def _first_ready(self, heap: list[tuple[int, int, int]], mine: bytearray, progress: LoadProgress) -> int | None:
        while heap:
            unit = heap[0][2]
            if mine[unit] and progress.absent(unit) and progress.computable(unit):
                return unit
            heappop(heap)
        return None

    def _next_to_stream(self, k: int, progress: LoadProgress) -> int | None:
        waiting = self._work.to_stream[k]
        while waiting:
            unit = waiting.popleft()
            if self._work.streams[unit] and progress.absent(unit):
                return unit
        return None
