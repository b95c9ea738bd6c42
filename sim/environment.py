"""SimPy's environment with its inner loop in one piece: worlds of many devices have a hundred million events."""

from collections.abc import Callable
from heapq import heappop
from typing import Any

import simpy
from simpy.core import StopSimulation


class Environment(simpy.Environment):  # type: ignore[misc]
    """The same events in the same order: what `run` does with each is SimPy's `step`, without a call for it."""

    def run(self, until: Any = None) -> Any:
        if not isinstance(until, simpy.Event) or until.callbacks is None:
            return super().run(until)
        until.callbacks.append(StopSimulation.callback)
        queue = self._queue
        callback: Callable[[simpy.Event], None]
        try:
            while queue:
                self._now, _, _, event = heappop(queue)
                callbacks, event.callbacks = event.callbacks, None
                for callback in callbacks:
                    callback(event)
                if not event._ok and not event.defused:
                    error = event._value
                    raise type(error)(*error.args) from error
        except StopSimulation as stop:
            # What else waits for it is called when the run goes on.
            event.callbacks = callbacks[callbacks.index(callback) + 1 :]
            self.schedule(event, -1)
            return stop.args[0]
        # Nothing is left that could happen, which SimPy says.
        until.callbacks.remove(StopSimulation.callback)
        return super().run(until)
