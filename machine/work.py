"""A ticket with what its queue needs to know, so that simulated work is one object per piece."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import simpy

from kvferry.machine.ticket import Cancelled, Ticket


class Owner(Protocol):
    """The queue that a piece of work was handed to."""

    def ready(self, work: Any) -> None:
        """Called when every ticket that this work waited for has fired."""
        ...

    def withdraw(self, work: Any) -> float | None:
        """Remove the work and go on with the rest. Returns the bytes done, or None if it cannot be stopped."""
        ...


class Work(Ticket):
    """Work that waits for other tickets, can be withdrawn, and fires with `result`."""

    def __init__(
        self, env: simpy.Environment, owner: Owner, n_bytes: float, label: str, request: int | None, result: Any
    ) -> None:
        # Inlined from Ticket and simpy.Event, which would be two more calls: many thousands of these are made.
        self.env = env
        self.callbacks: list[Callable[[Any], None]] = []
        self.start_s = self.end_s = None
        self._owner = owner
        self.n_bytes = n_bytes
        self.label = label
        self.request = request
        self.result = result
        # Submitted, and neither begun nor withdrawn.
        self.queued = True
        # Tickets that it still waits for.
        self.awaited = 0

    def wait_for(self, after: Iterable[Ticket]) -> None:
        """Call the owner's `ready` once all of `after` have fired.

        The first of them that was cancelled cancels this work, the first that failed fails it.
        """
        for ticket in after:
            if ticket.callbacks is not None:
                self.awaited += 1
                ticket.callbacks.append(self._fired)
            elif not self._ended_well(ticket):
                return
        if not self.awaited:
            self._owner.ready(self)

    def cancel(self) -> float:
        bytes_done = self._owner.withdraw(self)
        if bytes_done is None:
            return 0.0
        self.end_s = self.env.now
        self.succeed(Cancelled(bytes_done))
        return bytes_done

    def fire_in(self, delay_s: float, then: "Callable[[Any], None] | None" = None) -> None:
        """Fire after a delay, which cannot be stopped. `then` is called before any other callback.

        The ticket itself is the scheduled event, and `triggered` stays False until it happens.
        """
        self._then = then
        self.callbacks.insert(0, _fire)
        self.env.schedule(self, delay=delay_s)

    def _fired(self, ticket: Ticket) -> None:
        if self.triggered:
            # If this work already failed, its error covers the predecessor's failure as well.
            if not ticket.ok and not self.ok:
                ticket.defused = True
        elif self._ended_well(ticket):
            self.awaited -= 1
            if not self.awaited:
                self._owner.ready(self)

    def _ended_well(self, ticket: Ticket) -> bool:
        if not ticket.ok:
            ticket.defused = True
            self._owner.withdraw(self)
            self.fail(ticket.value)
            return False
        if isinstance(ticket.value, Cancelled):
            self.cancel()
            return False
        return True


def _fire(work: Work) -> None:
    # Set as simpy.Timeout does: the event is already scheduled, so succeed() would schedule it twice.
    work._ok = True
    work._value = work.result
    work.end_s = work.env.now
    if work._then is not None:
        work._then(work)
