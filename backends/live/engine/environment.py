"""SimPy in wall-clock time: events happen when worker threads say so, or when their time has come."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from time import perf_counter
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL

# What one wait may last at most: longer ones overflow the operating system's clocks. It is only asked again.
_LONGEST_WAIT_S = 3600.0


class WallClockEnvironment(simpy.Environment):  # type: ignore[misc]
    """`now` is the seconds since it was made. Processes, conditions, time-outs and interrupts are SimPy's own.

    Everything happens in the one thread that runs the environment, except `post`, `now` and what is done holding
    `lock`. A time-out never fires early. Like its parent, `run` returns when nothing can happen any more, and raises
    RuntimeError if the event that it waits for has not happened by then.
    """

    def __init__(self) -> None:
        super().__init__(0.0)
        # Guards what is shared with worker threads: held for moments only, and never while an event is processed.
        self.lock = Lock()
        self._origin_s = perf_counter()
        self._inbox: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._expected = 0

    # Within one step SimPy's own clock `_now` stands still at the time the event was due, which keeps SimPy's order
    # among all that happens at once: interrupts and new processes first, then as scheduled.

    def restart(self) -> None:
        """Set the clock to 0 again, after preparations that do not count. Nothing may have happened yet."""
        assert not self._queue and not self._expected
        self._origin_s, self._now = perf_counter(), 0.0

    @property
    def now(self) -> float:
        return perf_counter() - self._origin_s

    def schedule(self, event: simpy.Event, priority: Any = NORMAL, delay: float = 0) -> None:
        """Have an event happen `delay` seconds from now."""
        super().schedule(event, priority, self.now - self._now + delay if delay else 0)

    def expect(self) -> None:
        """Wait for one more answer from outside. The caller holds `lock`."""
        self._expected += 1

    def post(self, deliver: Callable[[Any], None], answer: Any) -> None:
        """From any thread: the answer to one `expect`. `deliver` is called with it in the environment's thread."""
        self._inbox.put((deliver, answer))

    def tell(self, deliver: Callable[[Any], None], news: Any) -> None:
        """From any thread: `deliver` is called with news that nobody expected, in the environment's thread."""
        with self.lock:
            self.expect()
            self.post(deliver, news)

    def step(self) -> None:
        """Wait for the next event, and process it. Raises EmptySchedule when there will be none."""
        self._wait()
        super().step()

    def _wait(self) -> None:
        """Until an event is due, taking in what has been posted by then. Whoever posts faster than this takes in does
        not keep the clock from being looked at."""
        inbox, queue = self._inbox, self._queue
        while True:
            for _ in range(inbox.qsize()):
                self._accept(*inbox.get())
            wait_s = queue[0][0] - self.now if queue else None
            if wait_s is None and not self._expected:
                raise EmptySchedule
            if wait_s is not None and wait_s <= 0:
                return
            with suppress(Empty):
                self._accept(*inbox.get(timeout=_LONGEST_WAIT_S if wait_s is None else min(wait_s, _LONGEST_WAIT_S)))

    def _accept(self, deliver: Callable[[Any], None], answer: Any) -> None:
        with self.lock:
            self._expected -= 1
        self._now = self.now
        deliver(answer)
