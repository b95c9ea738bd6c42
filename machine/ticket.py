"""A ticket for submitted work: a SimPy event that can be cancelled."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import simpy


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The value of a ticket that was cancelled: how many bytes (0 for ops) had been moved by then."""

    bytes_done: float


class Ticket(simpy.Event):  # type: ignore[misc]
    """Fires when the work is done; its value is the result, or ``Cancelled``.

    Work that waits for a cancelled ticket through ``after`` is cancelled too, with 0 bytes done, since its input
    is missing.
    """

    __slots__ = ("_canceller", "end_s", "start_s")

    def __init__(self, env: simpy.Environment, canceller: "Callable[[Ticket], float] | None" = None) -> None:
        super().__init__(env)
        self._canceller = canceller
        # When the work began and ended; None until then.
        self.start_s: float | None = None
        self.end_s: float | None = None

    @property
    def cancelled(self) -> bool:
        return self.triggered and isinstance(self.value, Cancelled)

    def cancel(self) -> float:
        """Stop the work; returns the bytes done. Has no effect on a ticket that has fired or cannot be stopped.

        Bytes that were moved count as moved, but are not a usable chunk. An op that is running cannot be
        cancelled: it runs to its end.
        """
        if self.triggered or self._canceller is None:
            return 0.0
        return self._canceller(self)

    def settle(self, value: Any, start_s: float, end_s: float) -> None:
        """Fire with a value, for work from start to end. Only the machine calls it."""
        self.start_s, self.end_s = start_s, end_s
        self.succeed(value)
