"""A queue that serves work in order: the base of processors, copy engines and decompressors."""

from collections import deque
from collections.abc import Iterable

import simpy

from kvferry.machine.busy import Busy
from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work import Work


class TimedWork(Work):
    """Work with a nominal duration, which is the one on an idle device."""

    nominal_s: float


class WorkQueue:
    """Serves one piece of work at a time, or `servers` at once. Work that has begun runs to its end.

    Each priority is a lane of its own, like a CUDA stream: in a lane, work begins in the order of submission, and
    work that still waits for other tickets blocks the work behind it. Among the lanes whose first work can begin,
    the lowest priority number goes first; a waiting lane does not block the others. Two pieces of work can
    therefore never wait for each other.

    One event per piece of work: the ticket itself, scheduled when the work begins.
    """

    def __init__(self, env: simpy.Environment, resource: str, tell: Tell, servers: int = 1) -> None:
        self.env = env
        self.resource = resource
        self.busy = Busy()
        # Submitted and not begun.
        self.queued = 0
        self._tell = tell
        self._born_s = env.now
        self._servers = servers
        self._free = servers
        self._lanes: dict[int, deque[TimedWork]] = {}  # by priority, ascending

    def hand_over(
        self, work: TimedWork, nominal_s: float, after: Iterable[Ticket] = (), priority: int = 0
    ) -> TimedWork:
        """Submit work that takes `nominal_s` on an idle device."""
        work.nominal_s = nominal_s
        if not after and not self.queued and self._free and self._takes(work):
            # Nothing is before it.
            self._take(work)
            return work
        if priority not in self._lanes:
            self._lanes[priority] = deque()
            self._lanes = dict(sorted(self._lanes.items()))
        self._lanes[priority].append(work)
        self.queued += 1
        work.wait_for(after)
        return work

    def record(self, label: str, start_s: float, end_s: float, n_bytes: float) -> None:
        """Tell of work that was worked out elsewhere, now that it is over. The queue is idle."""
        self._tell(Span(self.resource, label, start_s, end_s, n_bytes, None))

    def utilisation(self, window_s: float) -> float:
        """Share of the last `window_s` (of the time since the start, when that is less) with a server at work."""
        now = self.env.now
        return self.busy.utilisation(max(self._born_s, now - window_s), now)

    # --- called by work ----------------------------------------------------------------------------------------

    def ready(self, work: TimedWork) -> None:
        if self._free:
            self._serve()

    def withdraw(self, work: TimedWork) -> float | None:
        if not work.queued:
            return None
        work.queued = False
        self.queued -= 1
        self._serve()
        return 0.0

    # --- the servers -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._free and (work := self._next()) is not None:
            self.queued -= 1
            self._take(work)

    def _take(self, work: TimedWork) -> None:
        self._free -= 1
        work.queued = False
        work.start_s = now = self.env.now
        self.busy.begin(now)
        self._begin(work)

    def _takes(self, work: TimedWork) -> bool:
        """Whether work may begin now, a server being free."""
        return True

    def _next(self) -> TimedWork | None:
        for lane in self._lanes.values():
            while lane and not lane[0].queued:
                lane.popleft()
            if lane and not lane[0].awaited:
                return lane.popleft()
        return None

    def _begin(self, work: TimedWork) -> None:
        """Schedule the end of the work: `_end` is called, then the ticket fires."""
        work.fire_in(work.nominal_s, self._end)

    def _end(self, work: TimedWork) -> None:
        assert work.start_s is not None
        now = self.env.now
        self._tell(Span(self.resource, work.label, work.start_s, now, work.n_bytes, work.request))
        self._free += 1
        if self.queued:
            self._serve()
        if self._free == self._servers:
            self.busy.end(now)
