"""The smallest machine that keeps the contract: one lane per queue, one second per op, one byte per second.

For tests of pipelines and policies: times are round numbers that can be followed by hand.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import simpy

from kvferry.machine.answers import Answer, Assigned, Selection
from kvferry.machine.handling import Handling
from kvferry.machine.machine import Asked, Channel, Facts, Outside
from kvferry.machine.memory import BudgetedPool
from kvferry.machine.ops import Assign, Chunks, Cluster, Extents, KvRef, Op, Selecting, Split
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.machine.tiers import moved
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.sim.channel import Switchboard
from kvferry.sim.display import SimDisplay
from kvferry.specs.tier import Tier


@dataclass(eq=False)
class _Job:
    ticket: Ticket
    duration_s: float
    n_bytes: float
    after: tuple[Ticket, ...]
    result: Any
    priority: int
    started_s: float = 0.0


class _Lane:
    """One queue: the first job waits for what it comes after, works, fires; then the next."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.waiting: list[_Job] = []
        self.running: _Job | None = None

    def put(self, job: _Job) -> None:
        self.waiting.append(job)
        self.waiting.sort(key=lambda j: j.priority)  # stable: equal priorities stay in order
        self._next()

    def cancel(self, job: _Job) -> float:
        done_bytes = 0.0
        if job is self.running:
            if job.n_bytes == 0.0:
                return 0.0  # an op that runs cannot be taken back
            done_bytes = job.n_bytes * (self.env.now - job.started_s) / job.duration_s
            self.running = None
        else:
            self.waiting.remove(job)
        job.ticket.settle(Cancelled(done_bytes), job.started_s, self.env.now)
        self._next()
        return done_bytes

    def _next(self, _: object = None) -> None:
        while self.waiting and self.running is None:
            job = self.waiting[0]
            for ticket in job.after:
                if ticket.callbacks is not None:  # not processed yet
                    ticket.callbacks.append(self._next)
                    return
            self.waiting.pop(0)
            job.started_s = self.env.now
            if any(ticket.cancelled for ticket in job.after):
                job.ticket.settle(Cancelled(0.0), self.env.now, self.env.now)
                continue
            self.running = job
            ended = self.env.timeout(job.duration_s)
            ended.callbacks.append(lambda _, job=job: self._end(job))

    def _end(self, job: _Job) -> None:
        if job is self.running:
            self.running = None
            job.ticket.settle(job.result, job.started_s, self.env.now)
            self._next()


class FakeMachine:
    """A Machine whose ops take `op_s` each and whose link, storage and copies move `bytes_per_s`.

    Its memory is unified, or else it has `host_bytes` beside it.
    """

    def __init__(
        self,
        name: str = "device",
        *,
        env: simpy.Environment | None = None,
        switchboard: Switchboard | None = None,
        op_s: float = 1.0,
        bytes_per_s: float = 1.0,
        capacity_bytes: float = 1000.0,
        host_bytes: float = math.inf,
        unified: bool = True,
    ) -> None:
        self.env = env or simpy.Environment()
        self.memory = BudgetedPool(capacity_bytes)
        self._unified = unified
        self._tiers: dict[Tier, BudgetedPool] = {
            "device": self.memory,
            "host": self.memory if unified else BudgetedPool(host_bytes),
            "storage": BudgetedPool(math.inf),
        }
        self.name = name
        self._switchboard = switchboard or Switchboard(self.env)
        self._op_s, self._bytes_per_s = op_s, bytes_per_s
        self._lanes: dict[object, _Lane] = {}

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        on, after = asked.get("on", "compute"), asked.get("after", ())
        return self._put(on, self._op_s, 0.0, after, self._answer(op), asked.get("priority", 0))

    def _answer(self, op: Op) -> Answer | None:
        """What ops that answer say: the same for the same step and layer, and for all rows."""
        if isinstance(op, Selecting):
            order = np.random.default_rng((op.step, op.layer)).permutation(op.groups)
            return Selection(np.broadcast_to(order[: op.k].astype(np.int32), (op.batch, op.heads, op.k)))
        if isinstance(op, Assign):
            nearest = np.random.default_rng((op.step, op.layer)).integers(op.centroids, dtype=np.int32)
            return Assigned(np.full((op.batch, op.heads), nearest), np.full((op.batch, op.heads), 4.0))
        if isinstance(op, Cluster):
            tokens = np.tile(even_sizes(op.tokens, op.clusters), (op.batch * op.heads, 1))
            labels = np.tile(np.sort(np.arange(op.tokens) % op.clusters), (len(tokens), 1))
            return Clustered(tokens, np.ones(tokens.shape), labels)
        if isinstance(op, Split):
            leave = np.array([0 if split.new is None else split.tokens // 2 for split in op.splits])
            tokens = np.stack([[split.tokens for split in op.splits] - leave, leave], axis=1)
            return SplitParts(tokens, np.ones(tokens.shape))
        return None

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._move(("link", request), chunks.n_bytes, after)

    def read(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._move("storage", extents.n_bytes, after)

    def write(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._move("storage", extents.n_bytes, after)

    def copy(
        self, kv: KvRef | Extents, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        return self._move("copy", kv.n_bytes, after)

    def move(
        self, what: KvRef | Extents, source: Tier, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        return moved(self, what, source, to, after, request, through_host=not self._unified)

    def memory_of(self, tier: Tier) -> BudgetedPool:
        return self._tiers[tier]

    def handle(self, handling: Handling, *, request: int | None = None) -> simpy.Event:
        return self.env.timeout(handling.seconds, handling.expects)

    @property
    def outside(self) -> Outside:
        return self

    def display(self) -> SimDisplay:
        return SimDisplay(self.env)

    def open(self, peer: str) -> Channel:
        return self._switchboard.open(self.name, peer)

    def observe(self, window_s: float) -> Facts:
        busy = {name for name, lane in self._lanes.items() if lane.running}
        links = [lane for name, lane in self._lanes.items() if isinstance(name, tuple)]
        compute = self._lanes.get("compute")
        return Facts(
            now_s=self.env.now,
            window_s=window_s,
            goodput_bytes_per_s=self._bytes_per_s if any(lane.running for lane in links) else None,
            link_utilisation=float(any(lane.running for lane in links)),
            compute_utilisation=float("compute" in busy),
            compute_speed=None,
            compute_queue=len(compute.waiting) if compute else 0,
            link_queue=sum(len(lane.waiting) for lane in links),
            free_bytes=self.memory.capacity_bytes - self.memory.used_bytes,
        )

    def _move(self, lane: object, n_bytes: float, after: Iterable[Ticket]) -> Ticket:
        return self._put(lane, n_bytes / self._bytes_per_s, n_bytes, after, None, 0)

    def _put(
        self, name: object, duration_s: float, n_bytes: float, after: Iterable[Ticket], result: Any, priority: int
    ) -> Ticket:
        lane = self._lanes.setdefault(name, _Lane(self.env))
        ticket = Ticket(self.env, lambda _: lane.cancel(job))
        job = _Job(ticket, duration_s, n_bytes, tuple(after), result, priority)
        lane.put(job)
        return ticket


def even_sizes(tokens: int, blocks: int) -> np.ndarray:
    """Tokens of each block, when they are dealt as evenly as can be; the first blocks have one more."""
    each, more = divmod(tokens, blocks)
    return each + (np.arange(blocks) < more)
