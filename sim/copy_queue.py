"""The copy path between host and device memory (PCIe)."""

from collections.abc import Iterable
from typing import Any

import simpy

from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work_queue import TimedWork
from kvferry.sim.contention import Contention
from kvferry.sim.slowed_queue import SlowedQueue


def copy_s(n_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Seconds of a copy that nothing slows."""
    return latency_s + n_bytes / bytes_per_s


class CopyQueue(SlowedQueue):
    """Copies one after the other, each taking `latency_s` and its bytes over `bytes_per_s`."""

    def __init__(
        self,
        env: simpy.Environment,
        bytes_per_s: float,
        latency_s: float,
        tell: Tell,
        resource: str = "copy",
        contention: Contention | None = None,
    ) -> None:
        super().__init__(env, resource, tell, contention=contention)
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s

    def copy(
        self,
        n_bytes: float,
        after: Iterable[Ticket] = (),
        priority: int = 0,
        label: str = "",
        request: int | None = None,
        result: Any = None,
    ) -> Ticket:
        """Copy bytes; fires with `result`."""
        work = TimedWork(self.env, self, n_bytes, label, request, result)
        return self.hand_over(work, copy_s(n_bytes, self._bytes_per_s, self._latency_s), after, priority)
