"""One piece of work under way whose speed changes: when it is done."""

from collections.abc import Callable

import simpy

from kvferry.sim.alarm import Alarm
from kvferry.traces.rate import RateTrace


class Pace:
    """Works off what is left at a speed that others set, and calls `done` then. Used again and again.

    `available` is the share that background load leaves over time (None: all of it), on top of the speed.
    """

    def __init__(self, env: simpy.Environment, available: RateTrace | None, done: Callable[[], None]) -> None:
        self._env = env
        self._available = available
        self._alarm = Alarm(env, lambda _: done())
        self._speed = 1.0
        # When the work is done, as it looks now.
        self.ends_s = 0.0
        # What is left from `_left_at_s` on, which may lie ahead.
        self._left_s = self._left_at_s = 0.0

    def begin(self, work_s: float, begins_s: float, speed: float) -> None:
        """Begins work that takes this many seconds at full speed, from `begins_s` on."""
        self._left_s, self._left_at_s, self._speed = work_s, begins_s, speed
        self._plan()

    def respeed(self, speed: float) -> None:
        """Sets the speed from now on."""
        now = self._env.now
        if now > self._left_at_s:
            self._left_s = max(0.0, self._left_s - self._speed * self._progress_s(self._left_at_s, now))
            self._left_at_s = now
        self._speed = speed
        self._plan()

    def stop(self) -> float:
        """Gives up the work; what is left of it, in seconds at full speed."""
        self.respeed(self._speed)
        self._alarm.clear()
        return self._left_s

    def finish_s(self, from_s: float, work_s: float) -> float:
        """When this many seconds of work at full speed are done, background load considered."""
        return from_s + work_s if self._available is None else self._available.finish_s(from_s, work_s)

    def _progress_s(self, from_s: float, until_s: float) -> float:
        return until_s - from_s if self._available is None else self._available.amount(from_s, until_s)

    def _plan(self) -> None:
        self.ends_s = self.finish_s(self._left_at_s, self._left_s / self._speed)
        self._alarm.set(self.ends_s, self._env.now)
