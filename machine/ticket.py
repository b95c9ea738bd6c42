"""A promise of work: a SimPy event that can be cancelled."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import simpy


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The value of a ticket that was cancelled: how many bytes (0 for ops) had been moved by then."""

    bytes_done: float


class Ticket(simpy.Event):
    """Fires when the work is done; its value is the result, or ``Cancelled``.

    Work that waits for a cancelled ticket through ``after`` is cancelled too, with 0 bytes done: what it
    would have worked on is not there.
    """

    __slots__ = ("_canceller", "end_s", "start_s")

    def __init__(self, env: simpy.Environment, canceller: "Callable[[Ticket], float] | None" = None) -> None:
        super().__init__(env)
        self._canceller = canceller
        # When the work began and ended; None until known.
        self.start_s: float | None = None
        self.end_s: float | None = None

    @property
    def cancelled(self) -> bool:
        return self.triggered and isinstance(self.value, Cancelled)

    def cancel(self) -> float:
        """Stop the work; returns the bytes done. A ticket that has fired, or cannot be stopped, is left alone.

        Bytes already moved stay moved (they are what the link delivered); the caller may not use them as a
        whole chunk. Of an op that is running nothing can be taken back: it runs to its end.
        """
        if self.triggered or self._canceller is None:
            return 0.0
        return self._canceller(self)

    def settle(self, value: Any, start_s: float, end_s: float) -> None:
        """For the machine: fire with a value, having worked from start to end."""
        self.start_s, self.end_s = start_s, end_s
        self.succeed(value)
