"""Entropy decoding as a resource with a rate."""

from collections.abc import Iterable
from typing import Any

import simpy

from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work_queue import TimedWork
from kvferry.sim.contention import Contention
from kvferry.sim.slowed_queue import SlowedQueue
from kvferry.specs.device import DecompressorSpec


class Decompressor(SlowedQueue):
    """`workers` equal workers, each decoding one piece at a time; pieces begin in the order of submission.

    With several workers a small piece may be ready before a large one that began earlier. Other paths at work slow
    all workers alike (`contention`).
    """

    def __init__(
        self, env: simpy.Environment, spec: DecompressorSpec, tell: Tell, contention: Contention | None = None
    ) -> None:
        super().__init__(env, "decompress", tell, spec.workers, contention)
        self._spec = spec

    def decompress(
        self,
        values: float,
        after: Iterable[Ticket] = (),
        priority: int = 0,
        label: str = "",
        request: int | None = None,
        result: Any = None,
    ) -> Ticket:
        """Decode this number of key and value numbers; the ticket fires with `result`."""
        work = TimedWork(self.env, self, 0.0, label, request, result)
        return self.hand_over(work, self._spec.seconds(values), after, priority)
