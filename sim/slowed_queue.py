"""Work served in order that other paths slow while they are busy."""

from functools import partial

import simpy

from kvferry.machine.span import Tell
from kvferry.machine.work_queue import TimedWork, WorkQueue
from kvferry.sim.contention import Contention
from kvferry.sim.pace import Pace


class SlowedQueue(WorkQueue):
    """A work queue all of whose servers `contention` slows alike. Without it, it is the plain one, event for event."""

    def __init__(
        self,
        env: simpy.Environment,
        resource: str,
        tell: Tell,
        servers: int = 1,
        contention: Contention | None = None,
    ) -> None:
        super().__init__(env, resource, tell, servers)
        self._contention = contention if contention and contention.tell(resource, self._beside) else None
        # What is being served beside others, in the order it began.
        self._paces: dict[TimedWork, Pace] = {}

    def _begin(self, work: TimedWork) -> None:
        if self._contention is None:
            super()._begin(work)
            return
        pace = self._paces[work] = Pace(self.env, None, partial(self._finish, work))
        pace.begin(work.nominal_s, self.env.now, self._contention.speed(self.resource))

    def _beside(self) -> None:
        """Another path has begun or ended its work."""
        assert self._contention is not None
        speed = self._contention.speed(self.resource)
        for pace in self._paces.values():
            pace.respeed(speed)

    def _finish(self, work: TimedWork) -> None:
        del self._paces[work]
        work.end_s = self.env.now
        work.succeed(work.result)
        self._end(work)
