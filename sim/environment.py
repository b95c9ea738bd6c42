"""SimPy's environment for worlds of many devices, which have a hundred million events: its inner loop in one piece, and
no search for the place of what happens at once."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, EventPriority

# When, how urgent, the how many-th that was scheduled, and what.
_Entry = tuple[float, EventPriority, int, simpy.Event]


class Environment(simpy.Environment):  # type: ignore[misc]
    """The same events in the same order: what `run` does with each is SimPy's `step`, without a call for it."""

    # Asked for several times in each event: SimPy's own is a call in Python.
    now = property(attrgetter("_now"))

    def __init__(self) -> None:
        super().__init__()
        # Most events are to happen at once, behind the ones that were to before: they stand in line beside the heap of
        # thousands that happen later.
        self._at_once: deque[_Entry] = deque()

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        entry = self._now + delay, priority, next(self._eid), event
        if delay or priority != NORMAL:
            heappush(self._queue, entry)
        else:
            self._at_once.append(entry)

    def peek(self) -> float:
        return float(self._now) if self._at_once else float(super().peek())

    def step(self) -> None:
        while self._at_once:
            heappush(self._queue, self._at_once.popleft())
        super().step()

    def run(self, until: Any = None) -> Any:
        if not isinstance(until, simpy.Event) or until.callbacks is None:
            return super().run(until)
        until.callbacks.append(StopSimulation.callback)
        queue, at_once = self._queue, self._at_once
        callback: Callable[[simpy.Event], None]
        try:
            while queue or at_once:
                if at_once and (not queue or at_once[0] < queue[0]):
                    self._now, _, _, event = at_once.popleft()
                else:
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
