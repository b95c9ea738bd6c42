"""How what is sent crosses from one machine of a simulated world to another."""

from collections.abc import Sequence
from typing import Any, Protocol

import simpy


class Parts(Protocol):
    """Parts of a stream that cross one by one: when those arrived that have, and what each carried."""

    times_s: list[float]
    values: list[Any]

    def put(self, value: Any) -> None: ...
    def look(self) -> None:
        """Bring these lists up to now."""
        ...

    def ended(self) -> None:
        """All have arrived."""
        ...


class Carry(Protocol):
    """How messages cross from one named machine to another."""

    def __call__(self, sender: str, receiver: str, n_bytes: float) -> simpy.Event:
        """Fires when a message of this many bytes, sent now, has arrived."""
        ...

    def stream(self, sender: str, receiver: str, n_bytes: float) -> Parts | None:
        """Parts of this many bytes each that others delay; None: they cross by arithmetic, as below."""
        ...

    def arrivals_s(self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float) -> Sequence[float]:
        """When messages of this many bytes each arrive that were sent one after the other at these times."""
        ...

    def expected_s(
        self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float, behind_s: float
    ) -> Sequence[float]:
        """Returns when these would arrive behind one that arrives at `behind_s`, without jitter; sends nothing."""
        ...


class AtOnce:
    """Machines that nothing lies between."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def __call__(self, sender: str, receiver: str, n_bytes: float) -> simpy.Event:
        return self._env.timeout(0)

    def stream(self, sender: str, receiver: str, n_bytes: float) -> None:
        return None

    def arrivals_s(self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float) -> Sequence[float]:
        return sent_s

    def expected_s(
        self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float, behind_s: float
    ) -> Sequence[float]:
        return sent_s
