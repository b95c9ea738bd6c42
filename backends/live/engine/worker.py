"""Threads that serve a queue in wall-clock time."""

import math
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.out_of_memory import lack_of_memory
from kvferry.backends.live.engine.thread_work import Call, LiveWork, Moving, WorkFailed, fire
from kvferry.machine.ended import Ended
from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work_queue import TimedWork, WorkQueue


class Worker(WorkQueue):
    """A queue with lanes by priority, as in the simulator, served by up to `servers` threads.

    A thread that finishes one piece of work begins the next itself. An exception of a call fails its ticket.
    """

    env: WallClockEnvironment
    # The device on which this queue launches work, the same for all its queues; None: threads do the work.
    device: object | None = None

    def __init__(self, env: WallClockEnvironment, resource: str, tell: Tell, servers: int = 1) -> None:
        super().__init__(env, resource, tell, servers)
        self._jobs: SimpleQueue[tuple[LiveWork, Call, tuple[Any, ...]] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._closed = False
        # Work whose nominal duration is known.
        self._ended = Ended()

    def do(
        self,
        call: Call,
        after: Iterable[Ticket] = (),
        priority: int = 0,
        *,
        n_bytes: float = 0.0,
        label: str = "",
        request: int | None = None,
        nominal_s: float | None = None,
        moving: Moving | None = None,
    ) -> LiveWork:
        """A thread calls `call` with the results of `after`; the ticket fires with what it returns.

        `nominal_s`: how long it takes on an idle device, where that is known. `moving`: with it, the call can be
        cancelled while it runs.
        """
        work = LiveWork(self.env, self, call, n_bytes, label, request, moving)
        with self.env.lock:
            self.hand_over(work, math.nan if nominal_s is None else nominal_s, after, priority)
            ended_already = work.ended
        if ended_already:
            fire([work])
        return work

    def warm(self, call: Callable[[], object]) -> None:
        """Start a thread that calls this before any work, as first times are slow. Leaves no span. Raises what the call
        raises."""
        failed: list[BaseException | None] = []
        done = Event()

        def first() -> None:
            failed.append(outcome(call)[1])
            done.set()
            self._serve_jobs()

        self._start(first)
        done.wait()
        if failed[0] is not None:
            raise failed[0]

    def stop(self) -> None:
        """Begin no further work, and end the threads. Tickets of work that has not begun never fire."""
        with self.env.lock:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)

    def join(self, until_s: float) -> None:
        """Wait for work under way, at most until `until_s` on the environment's clock."""
        for thread in self._threads:
            thread.join(max(0.0, until_s - self.env.now))

    # --- holding the lock ----------------------------------------------------------------------------------------

    def speed(self, window_s: float) -> float | None:
        """Nominal over actual duration of the work that ended in the last `window_s`; None when unknown."""
        return self._ended.speed(self.env.now - window_s)

    def left(self, work: LiveWork) -> list[LiveWork]:
        """Work under way was cancelled. Returns other work that ended by that."""
        return []

    def _next(self) -> LiveWork | None:
        return None if self._closed else super()._next()

    def _takes(self, work: TimedWork) -> bool:
        # Its turn comes in its lane, as a worker may be closed, and a link counts what is under way.
        return False

    def _begin(self, work: LiveWork) -> None:
        assert work.call is not None
        work.begun = True
        self.env.expect()
        self._jobs.put((work, work.call, work.inputs()))
        if len(self._threads) < self._servers - self._free:
            self._start(self._serve_jobs)

    def _start(self, target: Callable[[], None]) -> None:
        thread = Thread(target=target, name=f"kvferry {self.resource}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _finished(self, work: LiveWork, result: Any, error: BaseException | None) -> list[LiveWork]:
        """A thread has finished its work. Returns the work that ended by that."""
        # Cancelled work has ended before.
        ended = [] if work.ended else self._conclude(work, result, error)
        self._free += 1
        self._serve()
        if self._free == self._servers:
            self.busy.end(self.env.now)
        return ended

    def _conclude(self, work: LiveWork, result: Any, error: BaseException | None) -> list[LiveWork]:
        ended = work.end(result, error)
        assert work.start_s is not None and work.end_s is not None
        if not math.isnan(work.nominal_s):
            self._ended.add(work.end_s, work.nominal_s, work.end_s - work.start_s)
        return ended

    # --- the threads ---------------------------------------------------------------------------------------------

    def _serve_jobs(self) -> None:
        env = self.env
        while (job := self._jobs.get()) is not None:
            work, call, inputs = job
            work.start_s = env.now
            result, error = outcome(call, inputs)
            with env.lock:
                # Posted while the lock is held, tickets fire in the order in which their work ended: of several
                # failures, the environment raises the cause.
                env.post(fire, self._finished(work, result, error))
            del job, work, call, inputs, result, error

    def tell(self, work: LiveWork) -> None:
        """Report the span of work that had begun and has ended. Called in the environment's thread."""
        assert work.start_s is not None and work.end_s is not None
        self._tell(Span(self.resource, work.label, work.start_s, work.end_s, work.n_bytes, work.request))


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """What a call returned, or the exception that it raised: OutOfMemory where torch has none left."""
    try:
        return call(*arguments), None
    except BaseException as error:
        return None, lack_of_memory(error, "no memory is left") or _tellable(error)


def _tellable(error: BaseException) -> BaseException:
    """An error that SimPy can pass on: it makes errors new from their arguments when they enter a process."""
    try:
        if str(type(error)(*error.args)) == str(error):
            return error
    except Exception:
        pass
    failed = WorkFailed(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
