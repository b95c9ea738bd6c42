"""A timer that can be moved, for parts whose next end time changes."""

from collections.abc import Callable

import simpy


class Alarm:
    """Calls `ring` once, at the time it was last set to."""

    def __init__(self, env: simpy.Environment, ring: Callable[[simpy.Event], None]) -> None:
        self._env = env
        self._ring = [ring]
        self._event = self._new()

    def set(self, at_s: float, now_s: float) -> None:
        """Ring at `at_s` instead of at any time set before."""
        if self._event.callbacks is not None:
            self.clear()
        self._event.callbacks = self._ring
        self._env.schedule(self._event, delay=at_s - now_s if at_s > now_s else 0.0)

    def clear(self) -> None:
        """Do not ring. The SimPy event stays scheduled (SimPy cannot drop one) and does nothing when it fires."""
        if self._event.callbacks is not None:
            self._event.callbacks = []
            self._event = self._new()

    def _new(self) -> simpy.Event:
        # An event that has fired is private to this alarm, so it is used again: half the price of a new Timeout.
        event = simpy.Event(self._env)
        event._ok, event._value, event.callbacks = True, None, None
        return event
