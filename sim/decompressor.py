"""Entropy decoding as a resource with a rate."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import simpy

from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.contention import Contention
from kvferry.sim.pace import Pace
from kvferry.sim.work_queue import TimedWork, WorkQueue
from kvferry.specs.device import DecompressorSpec


class Decompressor(WorkQueue):
    """`workers` alike workers, each decoding one piece at a time; pieces begin in the order of hand-over.

    With several workers a small piece may be ready before a large one that began earlier. Other paths at work slow
    all workers alike (`contention`).
    """

    def __init__(
        self, env: simpy.Environment, spec: DecompressorSpec, tell: Tell, contention: Contention | None = None
    ) -> None:
        super().__init__(env, "decompress", tell, spec.workers)
        self._values_per_s, self._piece_s = spec.values_per_s, spec.piece_s
        self._contention = contention if contention and contention.tell("decompress", self._beside) else None
        # What is being decoded beside others, in the order it began.
        self._paces: dict[TimedWork, Pace] = {}

    def decompress(
        self,
        values: float,
        after: Iterable[Ticket] = (),
        priority: int = 0,
        label: str = "",
        request: int | None = None,
        result: Any = None,
    ) -> Ticket:
        """Decode so many key and value numbers; fires with `result`."""
        work = TimedWork(self.env, self, 0.0, label, request, result)
        return self.hand_over(work, self._piece_s + values / self._values_per_s, after, priority)

    def _begin(self, work: TimedWork) -> None:
        if self._contention is None:
            super()._begin(work)
            return
        pace = self._paces[work] = Pace(self.env, None, partial(self._finish, work))
        pace.begin(work.nominal_s, self.env.now, self._contention.speed("decompress"))

    def _beside(self) -> None:
        """Another path has begun or ended its work."""
        assert self._contention is not None
        speed = self._contention.speed("decompress")
        for pace in self._paces.values():
            pace.respeed(speed)

    def _finish(self, work: TimedWork) -> None:
        del self._paces[work]
        work.end_s = self.env.now
        work.succeed(work.result)
        self._end(work)
