"""A ticket that carries what its queue must know: one object per piece of simulated work."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import simpy

from kvferry.machine.ticket import Cancelled, Ticket


class Owner(Protocol):
    """The queue that a piece of work was handed to."""

    def ready(self, work: Any) -> None:
        """All that this work waited for has fired."""
        ...

    def withdraw(self, work: Any) -> float | None:
        """Take the work back and go on with the rest; the bytes done, or None when it cannot be stopped."""
        ...


class Work(Ticket):
    """Work that waits for other tickets, can be withdrawn, and fires with `result`."""

    def __init__(
        self, env: simpy.Environment, owner: Owner, n_bytes: float, label: str, request: int | None, result: Any
    ) -> None:
        # As Ticket and simpy.Event would, on the way down two calls: many thousands of these are made.
        self.env = env
        self.callbacks: list[Callable[[Any], None]] = []
        self.start_s = self.end_s = None
        self._owner = owner
        self.n_bytes = n_bytes
        self.label = label
        self.request = request
        self.result = result
        # Handed over, neither begun nor withdrawn.
        self.queued = True
        # Tickets that it still waits for.
        self.awaited = 0

    def wait_for(self, after: Iterable[Ticket]) -> None:
        """Report to the owner once all of `after` have fired.

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
        """Fire after a delay; nothing can stop it now. `then` is called first, before anyone else learns of it.

        The ticket itself is the scheduled event, and `triggered` stays False until it happens.
        """
        self._then = then
        self.callbacks.insert(0, _fire)
        self.env.schedule(self, delay=delay_s)

    def _fired(self, ticket: Ticket) -> None:
        if self.triggered:
            # Having failed already, it speaks for this failure too; having been cancelled, it speaks for none.
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
    # As simpy.Timeout sets its own: the event has been scheduled already, so succeed() would be once too often.
    work._ok = True
    work._value = work.result
    work.end_s = work.env.now
    if work._then is not None:
        work._then(work)
