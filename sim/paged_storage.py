"""A file that the operating system maps into memory: page faults read it, and memory keeps what was used last."""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import simpy

from kvferry.machine.busy import Busy
from kvferry.machine.ops import Extents
from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.storage_models import storage_of
from kvferry.specs.storage import StorageSpec

# A page fault reads so much around its page of 4 KiB: Linux's read-ahead, as it is unless set otherwise.
READ_AHEAD_BYTES = 128 << 10
# Pages of a larger file are kept and dropped in longer runs, so that there are no more runs than this.
MOST_RUNS = 1 << 16


class PageCache:
    """Which runs of a file's pages are in memory, of `most_bytes` at most; those used longest ago go first."""

    def __init__(self, file_bytes: float, most_bytes: float) -> None:
        self.run_bytes = READ_AHEAD_BYTES
        while file_bytes / self.run_bytes > MOST_RUNS:
            self.run_bytes *= 2
        self._most = max(1, int(most_bytes // self.run_bytes))
        # By run, those used longest ago first.
        self._held: OrderedDict[int, None] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        return len(self._held) * self.run_bytes

    def use(self, extents: Extents) -> tuple[list[int], list[int]]:
        """Touch these bytes in order; all runs that have some of them, and those that were not in memory."""
        touched, missing, held = [], [], self._held
        for offset, length in extents:
            for run in range(offset // self.run_bytes, -(-(offset + length) // self.run_bytes) if length else 0):
                touched.append(run)
                if run in held:
                    held.move_to_end(run)
                    continue
                if len(held) >= self._most:
                    held.popitem(last=False)
                held[run] = None
                missing.append(run)
        return touched, missing

    def commands(self, runs: list[int]) -> Extents:
        """A read-ahead at a time."""
        each = self.run_bytes // READ_AHEAD_BYTES
        offsets = (np.array(runs, np.int64)[:, None] * each + np.arange(each)).ravel() * READ_AHEAD_BYTES
        return Extents(offsets, np.full(len(offsets), READ_AHEAD_BYTES))


class PagedStorage:
    """A storage device behind a page cache. A process that faults waits for its page, so one command is under way.

    What is written goes to the device at once, as the system writes back before it has to: however much memory there
    is, as much is written. A page that is written to does not fault: what was there is not wanted. Left out: what a
    fault costs where the page is in memory, and that pages which change again and again are written once.
    """

    def __init__(
        self, env: simpy.Environment, spec: StorageSpec, tell: Tell, *, file_bytes: float, most_bytes: float
    ) -> None:
        one_by_one = spec.model_copy(update={"queue_depth": 1, "merges": False})
        self._device, self.cache = storage_of(env, one_by_one, tell), PageCache(file_bytes, most_bytes)
        self.spec = spec

    @property
    def resource(self) -> str:
        return self._device.resource

    @property
    def busy(self) -> Busy:
        return self._device.busy

    @property
    def queued(self) -> int:
        return self._device.queued

    def read(self, extents: Extents, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        _, faults = self.cache.use(extents)
        return self._device.read(self.cache.commands(faults), after, request)

    def write(self, extents: Extents, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        written, _ = self.cache.use(extents)
        return self._device.write(self.cache.commands(written), after, request)
