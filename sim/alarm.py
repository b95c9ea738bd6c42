"""A wake-up that can be moved: what a part with changing end times waits for."""

from collections.abc import Callable

import simpy


class Alarm:
    """Calls `ring` once, at the time it was last set to."""

    def __init__(self, env: simpy.Environment, ring: Callable[[simpy.Event], None]) -> None:
        self._env = env
        self._ring = [ring]
        self._event = self._new()

    def set(self, at_s: float, now_s: float) -> None:
        """Ring at `at_s`, and no more at the time set before."""
        if self._event.callbacks is not None:
            self.clear()
        self._event.callbacks = self._ring
        self._env.schedule(self._event, delay=at_s - now_s if at_s > now_s else 0.0)

    def clear(self) -> None:
        """Do not ring. What is scheduled stays so, as SimPy forgets nothing, but is deaf."""
        if self._event.callbacks is not None:
            self._event.callbacks = []
            self._event = self._new()

    def _new(self) -> simpy.Event:
        # An event that has rung is used again, as nobody else has ever seen it: half the price of a Timeout.
        event = simpy.Event(self._env)
        event._ok, event._value, event.callbacks = True, None, None
        return event
