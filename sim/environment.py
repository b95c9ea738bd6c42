"""SimPy's environment for worlds of many devices, which have a hundred million events: its inner loop in one piece, and
no search for the place of what happens at once."""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, EventPriority

# When, how urgent, the how many-th that was scheduled, and what.
_Entry = tuple[float, EventPriority, int, simpy.Event]
# What waits for an event that was called off; and so many of these may lie in the heap, and half of all in it.
_NOBODY: Any = ()
_MOST_CALLED_OFF = 256


class Environment(simpy.Environment):  # type: ignore[misc]
    """The same events in the same order: what `run` does with each is SimPy's `step`, without a call for it."""

    __slots__ = ("_at_once", "_called_off", "_now")

    def __init__(self) -> None:
        super().__init__()
        # As SimPy does it for its own class alone: looked up, each would be bound again at every use.
        for name in ("process", "timeout", "event", "all_of", "any_of"):
            setattr(self, name, getattr(self, name))
        # Most events are to happen at once, behind the ones that were to before: they stand in line beside the heap of
        # thousands that happen later.
        self._at_once: deque[_Entry] = deque()
        # Counts cancelled events since the heap was last cleared of them; some of these may have passed meanwhile.
        self._called_off = 0

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        entry = self._now + delay, priority, next(self._eid), event
        if delay or priority != NORMAL:
            heappush(self._queue, entry)
        else:
            self._at_once.append(entry)

    def call_off(self, event: simpy.Event) -> None:
        """Let a scheduled event not happen. Thousands of devices that wait a minute at most, and hardly ever do, would
        make the heap so deep that no cache holds it."""
        if event.callbacks is None or event.callbacks is _NOBODY:
            return
        event.callbacks = _NOBODY
        self._called_off += 1
        if self._called_off > _MOST_CALLED_OFF and 2 * self._called_off > len(self._queue):
            # In place: a run under way holds it.
            self._queue[:] = [entry for entry in self._queue if entry[3].callbacks is not _NOBODY]
            heapify(self._queue)
            self._called_off = 0

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


# SimPy's is a property, and the time is asked for hundreds of times for each request: a slot is read without a call.
Environment.now = vars(Environment)["_now"]
