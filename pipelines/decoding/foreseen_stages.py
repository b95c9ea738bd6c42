"""Decoding steps stage by stage, without events: the stages that pipelines carry out, on queues that are worked out.

What a stage asks for is answered when it is handed over, as the modelled machine does, and its end follows by
arithmetic. Tests hold it equal to the events.
"""

from collections.abc import Generator, Iterable
from typing import Any, Unpack

import simpy

from kvferry.machine.instant import at
from kvferry.machine.machine import Asked, MemoryPool
from kvferry.machine.ops import Extents, Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.sim.cost import Cost
from kvferry.sim.foreseen_queues import ForeseenQueues
from kvferry.sim.foresight import Foresight
from kvferry.specs.tier import Tier


def foreseeable_by_stages(plan: DecodePlan, foresight: Foresight) -> bool:
    """Returns whether steps of this plan can be worked out stage by stage: all KV lies on storage throughout, and no
    work slows down because of work handed over after it."""
    return foresight.beside == foresight.reads_beside == 1 and {*plan.tiers, *plan.last_tiers} == {"storage"}


class ForeseenTicket(Ticket):
    """A ticket for work whose end is known. It wakes no process."""

    def __init__(self, env: simpy.Environment, value: Any, end_s: float) -> None:
        # Like an event that has been processed.
        self.env, self.callbacks, self._value, self._ok = env, None, value, True
        self.start_s, self.end_s = None, end_s


class ForeseenMachine:
    """A machine for decoding that works out the end of each piece of work at once."""

    def __init__(self, env: simpy.Environment, foresight: Foresight, memory: Any) -> None:
        self.env, self._seen, self._memory = env, foresight, memory
        self.queues = ForeseenQueues(foresight.processor, foresight.storage, 1.0)
        # In this step, of ops that many layers have alike.
        self._costs: dict[Op, Cost] = {}
        # When what comes next is handed over.
        self.handed_over_s = env.now

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        processor = self._seen.processor
        answer, cost = self._seen.answer(op), self._cost(op)
        # The rest of it, once it was dispatched.
        cost_s = processor.dispatch_s + cost.duration_s - processor.dispatch_s
        end_s = self.queues.op(op.label, self._begin_s(asked.get("after", ())), cost_s, cost.n_bytes)
        return ForeseenTicket(self.env, answer, end_s)

    def _cost(self, op: Op) -> Cost:
        if op.answer is not None:
            return self._seen.processor.cost(op)
        if op not in self._costs:
            self._costs[op] = self._seen.processor.cost(op)
        return self._costs[op]

    def begin(self) -> None:
        """A step begins."""
        self.handed_over_s = self.env.now
        self._costs.clear()

    def move(
        self, what: Extents, source: Tier, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        storage, begin_s = self._seen.storage, self._begin_s(after)
        if "storage" not in (source, to):
            # The memory is one: what is to be copied is there already.
            return ForeseenTicket(self.env, None, begin_s)
        for label, took_s, n_bytes in storage.batches(what, writes=to == "storage"):
            begin_s = self.queues.batch(label, begin_s, took_s, n_bytes)
        return ForeseenTicket(self.env, None, begin_s)

    def memory_of(self, tier: Tier) -> MemoryPool:
        pool: MemoryPool = self._memory(tier)
        return pool

    def _begin_s(self, after: Iterable[Ticket]) -> float:
        begin_s = self.handed_over_s
        for ticket in after:
            if ticket.end_s is not None and ticket.end_s > begin_s:
                begin_s = ticket.end_s
        return begin_s


class StagedSteps:
    """The steps of a batch after prefill, each worked out when it begins. Of the layers the first `kinds` are told
    apart, and those behind are each like one of them."""

    def __init__(self, now: DecodeState, foresight: Foresight, kinds: int) -> None:
        now.tell_apart(kinds)
        machine = now.machine
        self._now, self._env = now, machine.env
        now.machine = self._machine = ForeseenMachine(machine.env, foresight, machine.memory_of)
        stages = now.plan.stages
        place = {stage.key: n for n, stage in enumerate(stages)}
        self._stages = [(KINDS[s.kind], s.layer, [place[key] for key in s.after], s.awaited) for s in stages]

    def step(self) -> Generator[simpy.Event, None, None]:
        """Returns a SimPy process of one step: it waits for its end, when all that is over is on record."""
        now, machine, under_way = self._now, self._machine, list[Ticket]()
        machine.begin()
        for kind, layer, after, awaited in self._stages:
            ticket = kind.begin(now, layer, tuple([under_way[n] for n in after]))
            under_way.append(ticket)
            end_s = ticket.end_s or 0.0
            if awaited:
                now.awaits(ticket)
                machine.handed_over_s = max(machine.handed_over_s, end_s)
        now.awaits(under_way[-1])
        yield at(self._env, end_s)
        machine.queues.record(self._env.now)
