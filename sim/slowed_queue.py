"""Work served in order that other paths slow while they are busy: copies between memories, and entropy decoding."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy

from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work_queue import TimedWork, WorkQueue
from kvferry.sim.contention import Contention
from kvferry.sim.pace import Pace
from kvferry.specs.device import DecompressorSpec, GatheredSpec


class SlowedQueue(WorkQueue):
    """A work queue all of whose servers `contention` slows alike. Without it, it is the plain one, event for event."""

    def __init__(
        self,
        env: simpy.Environment,
        resource: str,
        tell: Tell,
        servers: int = 1,
        contention: Contention | None = None,
    ) -> None:
        super().__init__(env, resource, tell, servers)
        self._contention = contention if contention and contention.tell(resource, self._beside) else None
        # What is being served beside others, in the order it began.
        self._paces: dict[TimedWork, Pace] = {}

    def _begin(self, work: TimedWork) -> None:
        if self._contention is None:
            super()._begin(work)
            return
        pace = self._paces[work] = Pace(self.env, None, partial(self._finish, work))
        pace.begin(work.nominal_s, self.env.now, self._contention.speed(self.resource))

    def _beside(self) -> None:
        """Another path has begun or ended its work."""
        assert self._contention is not None
        speed = self._contention.speed(self.resource)
        for pace in self._paces.values():
            pace.respeed(speed)

    def _finish(self, work: TimedWork) -> None:
        del self._paces[work]
        work.end_s = self.env.now
        work.succeed(work.result)
        self._end(work)


def copy_s(
    n_bytes: float, bytes_per_s: float, latency_s: float, gathered: Sequence[GatheredSpec] = (), ranges: float = 1
) -> float:
    """Seconds of a copy of ranges of one length that nothing slows; short ones are `gathered` first."""
    each_bytes = n_bytes / ranges if ranges else math.inf
    if gathered and each_bytes <= gathered[-1].range_bytes:
        lengths = [math.log(one.range_bytes) for one in gathered]
        rates = [one.bytes_per_s for one in gathered]
        bytes_per_s = float(np.interp(math.log(max(1.0, each_bytes)), lengths, rates))
    return latency_s + n_bytes / bytes_per_s


class CopyQueue(SlowedQueue):
    """The copy path between host and device memory (PCIe): one after the other, each taking `latency_s` and its bytes
    over `bytes_per_s`, or over the rate of ranges that are `gathered` first."""

    def __init__(
        self,
        env: simpy.Environment,
        bytes_per_s: float,
        latency_s: float,
        tell: Tell,
        resource: str = "copy",
        contention: Contention | None = None,
        gathered: Sequence[GatheredSpec] = (),
    ) -> None:
        super().__init__(env, resource, tell, contention=contention)
        self._cost = bytes_per_s, latency_s, gathered

    def copy(
        self,
        n_bytes: float,
        after: Iterable[Ticket] = (),
        priority: int = 0,
        label: str = "",
        request: int | None = None,
        result: Any = None,
        ranges: int = 1,
    ) -> Ticket:
        """Copy bytes, of so many ranges; fires with `result`."""
        work = TimedWork(self.env, self, n_bytes, label, request, result)
        return self.hand_over(work, copy_s(n_bytes, *self._cost, ranges), after, priority)


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
