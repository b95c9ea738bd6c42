"""A ticket for work that threads carry out: it starts what waits for it without the environment's thread."""

from collections.abc import Callable, Iterable, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.machine.work_queue import TimedWork
from kvferry.specs.errors import KvferryError

if TYPE_CHECKING:
    from kvferry.backends.live.engine.worker import Worker

# What the thread calls, with the results of the work that it comes after, in that order.
Call = Callable[[Sequence[Any]], Any]


class WorkFailed(KvferryError):
    """A worker thread raised an error that SimPy cannot pass on as it is."""


class Moving(Event):
    """Shared by a transfer under way and its owner. When it is set, the transfer is cancelled and returns at once."""

    def __init__(self, arrived: "Callable[[Moving, float], None]") -> None:
        super().__init__()
        self._arrived = arrived
        self.bytes_done = 0.0
        # When the first bytes were there, and the last.
        self.first_s: float | None = None
        self.last_s: float | None = None

    def moved(self, n_bytes: float) -> None:
        """The transfer calls this for every `n_bytes` that arrived; 0: the first bytes are on their way."""
        self._arrived(self, n_bytes)


class LiveWork(TimedWork):
    """Work begins once the work that it comes after has ended. Threads start each other's work, under `env.lock`.

    The ticket fires a little later, in the environment's thread, which also reports its span.
    """

    env: WallClockEnvironment
    _owner: "Worker"

    def __init__(
        self,
        env: WallClockEnvironment,
        worker: "Worker",
        call: Call,
        n_bytes: float,
        label: str,
        request: int | None,
        moving: Moving | None,
    ) -> None:
        super().__init__(env, worker, n_bytes, label, request, None)
        self.call: Call | None = call
        # Of a transfer, which can be stopped on its way.
        self.moving = moving
        self.begun = self.ended = False
        # Launched: where on its device other work can be put behind it.
        self.mark: Any = None
        self.after: tuple[Ticket, ...] = ()
        self.error: BaseException | None = None
        self._behind: list[LiveWork] = []

    def cancel(self) -> float:
        with self.env.lock:
            if self.ended or (self.begun and self.moving is None):
                return 0.0
            if self.moving is None or not self.begun:
                bytes_done = 0.0
                ended = self.end(Cancelled(0.0))
            else:
                self.moving.set()
                bytes_done = self.moving.bytes_done
                ended = self.end(Cancelled(bytes_done)) + self._owner.left(self)
        fire(ended)
        return bytes_done

    # --- holding the lock ----------------------------------------------------------------------------------------

    def wait_for(self, after: Iterable[Ticket]) -> None:
        """Begin once all of `after` have fired. The first that is cancelled or fails cancels or fails this work as
        well."""
        self.after = after = tuple(after)
        for ticket in after:
            if isinstance(ticket, LiveWork) and not ticket.ended:
                ticket._behind.append(self)
                self.awaited += not ticket.launched_for(self)
            elif not isinstance(ticket, LiveWork) and ticket.callbacks is not None:
                self.awaited += 1
                ticket.callbacks.append(self._fired)
            else:
                self._shares_fate(ticket)
        if not self.ended and not self.awaited:
            self._owner.ready(self)

    def inputs(self) -> tuple[Any, ...]:
        return tuple(ticket.result if isinstance(ticket, LiveWork) else ticket.value for ticket in self.after)

    def launched_for(self, other: "LiveWork") -> bool:
        """Whether `other` can be launched behind this now, as both are on one device that keeps the order."""
        return self.mark is not None and self._owner.device == other._owner.device

    def launch(self, mark: Any, result: Any) -> None:
        """This work was launched on a device that keeps the order of launches."""
        self.mark, self.result = mark, result
        for work in self._behind:
            if self.launched_for(work):
                work._one_less()

    def end(self, result: Any, error: BaseException | None = None) -> list["LiveWork"]:
        """Set the outcome. Returns the work that has ended by this and is to be fired: itself, and what failed or was
        cancelled with it."""
        self._conclude(result, error)
        return self._pass_on()

    def _pass_on(self) -> list["LiveWork"]:
        ended = [self]
        for work in ended:  # grows on the way
            for other in work._behind:
                if other._shares_fate(work):
                    ended.append(other)
                elif not work.launched_for(other):
                    other._one_less()
            work._behind.clear()
        return ended

    def _shares_fate(self, ticket: Ticket) -> bool:
        """Fail or be cancelled if `ticket`, which this work comes after, did. Returns whether this work ended by
        that."""
        live = isinstance(ticket, LiveWork)
        error = ticket.error if live else None if ticket.ok else ticket.value
        result = ticket.result if live else ticket.value
        if error is not None and not self.begun and (not self.ended or self.error is not None):
            # This work's error reports the failure of `ticket`. If this work already failed, its own error covers both.
            ticket.defused = True
        if self.ended or self.begun or (error is None and not isinstance(result, Cancelled)):
            return False
        self._conclude(None if error else Cancelled(0.0), error)
        return True

    def _conclude(self, result: Any, error: BaseException | None) -> None:
        self.result, self.error = result, error
        self.ended = True
        self.end_s = self.env.now if self.end_s is None else self.end_s
        # These may hold much memory, and the ticket stays.
        self.after, self.call = (), None
        if not self.begun:
            self._owner.withdraw(self)

    def _one_less(self) -> None:
        self.awaited -= 1
        if not self.awaited and not self.ended:
            self._owner.ready(self)

    # --- in the environment's thread -----------------------------------------------------------------------------

    def _fired(self, ticket: Ticket) -> None:
        """A ticket that is not a worker's, and that this work comes after, has fired."""
        ended: list[LiveWork] = []
        with self.env.lock:
            if self._shares_fate(ticket):
                ended = self._pass_on()
            else:
                self._one_less()
        fire(ended)

    def fire(self) -> None:
        if self.begun:
            self._owner.tell(self)
        if self.error is None:
            self.succeed(self.result)
        else:
            self.fail(self.error)


def fire(ended: Sequence[LiveWork]) -> None:
    """Fire the tickets of work that has ended. Called in the environment's thread."""
    for work in ended:
        work.fire()
