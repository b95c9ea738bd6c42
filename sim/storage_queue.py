"""Storage that simulates every command in a flash device, with one SimPy event per batch."""

from typing import cast

import simpy

from kvferry.machine.span import Tell
from kvferry.machine.work_queue import TimedWork
from kvferry.sim.alarm import Alarm
from kvferry.sim.flash import Flash
from kvferry.sim.storage import Batch, Storage
from kvferry.specs.storage import StorageSpec


class QueueStorage(Storage):
    """Commands of all batches share the device's queue, in the order in which the batches were handed over.

    A batch has begun when its first command has a place in that queue.
    """

    # A copy of the device is simulated up to the next end of a batch. If another batch is submitted before that
    # time, the copy is dropped and the original is simulated up to now; otherwise the copy replaces it.

    def __init__(self, env: simpy.Environment, spec: StorageSpec, tell: Tell) -> None:
        # Its own queue is bounded; how many batches are in it is not.
        super().__init__(env, spec, tell, servers=1 << 62)
        assert spec.queue is not None
        self.flash = Flash(spec.queue, spec.queue_depth, spec.duplex == "half")
        self.flash.now_s = env.now
        self._ahead: Flash | None = None
        self._batches: dict[int, Batch] = {}
        self._number = 0
        self._alarm = Alarm(env, self._ring)

    def _begin(self, work: TimedWork) -> None:
        batch = cast(Batch, work)
        extra_s = self._map_miss_s(batch.offsets, batch.lengths)
        self._catch_up()
        self._number += 1
        self._batches[self._number] = batch
        self.flash.feed(self._number, batch.writes, batch.offsets.tolist(), batch.lengths.tolist(), extra_s)
        # Looked ahead once nothing else comes at this time.
        self._alarm.set(self.env.now, self.env.now)

    def withdraw(self, work: TimedWork) -> float | None:
        number = next((number for number, batch in self._batches.items() if batch is work), None)
        if number is None:
            return super().withdraw(work)
        self._catch_up()
        batch = self._batches.pop(number, None)
        if batch is None:
            return None  # it has just ended
        batch.n_bytes = self.flash.withdraw(number)
        self._end(batch)
        self._alarm.set(self.env.now, self.env.now)
        return batch.n_bytes

    def _catch_up(self) -> None:
        """Simulate the device up to now."""
        self._ahead = None
        self._tell_ended(self.flash.advance(self.env.now))

    def _ring(self, _: simpy.Event) -> None:
        now = self.env.now
        if self._ahead is not None:
            self.flash, self._ahead = self._ahead, None
        self._tell_ended(self.flash.advance(now))
        ahead = self.flash.copy()
        end_s = ahead.first_end_s()
        if end_s is not None:
            self._ahead = ahead
            self._alarm.set(end_s, now)

    def _tell_ended(self, ended: list[tuple[float, int, float]]) -> None:
        for _, number, start_s in ended:
            batch = self._batches.pop(number)
            batch.start_s, batch.end_s = start_s, self.env.now
            batch.succeed(batch.result)
            self._end(batch)
