"""SparKV's runtime controller (IV-D): moves work to the path that would otherwise be idle."""

from kvferry.policies.loading.assignment import Assignment
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.progress import LoadProgress


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
        self.migrations = 0

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
        self._count()
        return unit

    def compute_instead(self, work: Assignment, k: int, unit: int, progress: LoadProgress, facts: LoadFacts) -> bool:
        """Whether to compute a unit that stage k gave to the link, rather than wait for the link."""
        if not self._may_migrate(work, k):
            return False
        computed_s = facts.starting_s + (progress.computing_s + work.compute_s[unit]) / facts.seen_speed
        if computed_s >= self._stream_s(progress.streaming_bytes + work.left_stream_bytes[k], facts):
            return False
        self._count()
        return True

    def _stream_s(self, n_bytes: float, facts: LoadFacts) -> float:
        rate = facts.goodput_bytes_per_s
        # An outage ends some time, but when is unknown here.
        return facts.rtt_s + n_bytes / max(facts.planned_bytes_per_s if rate is None else rate, 1e-9)

    def _may_migrate(self, work: Assignment, k: int) -> bool:
        if k != self._stage:
            self._stage, self._migrated = k, 0
        return self._migrated < self.migration_limit * work.units_of[k]

    def _count(self) -> None:
        self._migrated += 1
        self.migrations += 1
