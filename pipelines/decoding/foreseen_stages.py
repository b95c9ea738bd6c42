"""Decoding steps stage by stage, without events: the stages that pipelines carry out, on queues that are worked out.

What a stage asks for is answered when it is handed over, as the modelled machine does, and its end follows by
arithmetic. Tests hold it equal to the events.
"""

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, Unpack

import simpy

from kvferry.layouts.pieces import Ranges
from kvferry.machine.instant import at
from kvferry.machine.machine import Asked, MemoryPool
from kvferry.machine.ops import Extents, Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.stage_kind import Kind, OfLayersAlike
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.sim.cost import Cost
from kvferry.sim.foreseen_queues import ForeseenQueues
from kvferry.sim.foresight import Foresight
from kvferry.sim.storage_curve import PricedRead
from kvferry.specs.tier import Tier


def foreseeable_by_stages(plan: DecodePlan, foresight: Foresight) -> bool:
    """Returns whether steps of this plan can be worked out stage by stage: all KV lies on storage throughout, and no
    work slows down because of work handed over after it."""
    return foresight.beside == foresight.reads_beside == 1 and {*plan.tiers, *plan.last_tiers} == {"storage"}


# Work that a stage has handed over: its label, what it takes (an op besides its dispatch), bytes, and whether it is a
# batch of the storage. A plain tuple, as a token has hundreds.
Handed = tuple[str, float, float, bool]


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
        # When what comes next is handed over, and what the stage under way has handed over.
        self.handed_over_s = env.now
        self.handed = list[Handed]()

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        processor = self._seen.processor
        answer, cost = self._seen.answer(op), self._cost(op)
        # The rest of it, once it was dispatched.
        cost_s = processor.dispatch_s + cost.duration_s - processor.dispatch_s
        self.handed.append((op.label, cost_s, cost.n_bytes, False))
        begin_s = self._begin_s(asked.get("after", ()))
        return ForeseenTicket(self.env, answer, self.queues.op(op.label, begin_s, cost_s, cost.n_bytes))

    def foretold(self, op: Op) -> Ticket:
        """Returns what an op that comes later in this step will be answered."""
        return ForeseenTicket(self.env, self._seen.answer(op), self.handed_over_s)

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
            self.handed.append((label, took_s, n_bytes, True))
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


class _Staged(NamedTuple):
    """A stage of a step. ``after``, ``others`` and ``beside`` are places in the list of stages: what it waits for, and
    the same stage of layers behind that are alike, and of layers that are decided with this one."""

    kind: Kind
    layer: int
    after: list[int]
    awaited: bool
    others: list[int]
    beside: list[int]


class StagedSteps:
    """The steps of a batch after prefill, each worked out when it begins. Of the layers the first `kinds` are told
    apart, and those behind are each like one of them: they repeat its work, but for what they read."""

    def __init__(self, now: DecodeState, foresight: Foresight, kinds: int) -> None:
        machine = now.machine
        self._now, self._env, self._storage = now, machine.env, foresight.storage
        now.machine = self._machine = ForeseenMachine(machine.env, foresight, machine.memory_of)
        now.alike.tell_apart(kinds, self._machine.foretold, swaps=now.plan.roles.residency.swaps)
        # By the first of some stages, what they read last, and its prices.
        self._priced = dict[int, tuple[list[Ranges], list[PricedRead] | None]]()
        stages = now.plan.stages
        place = {stage.key: n for n, stage in enumerate(stages)}
        self._stages = [
            _Staged(
                KINDS[s.kind],
                s.layer,
                [place[key] for key in s.after],
                s.awaited,
                [place[s.kind, other] for other in now.alike(s.layer)[1:] if (s.kind, other) in place],
                [place[s.kind, other] for other in now.alike.decided_with(s.layer)[1:] if (s.kind, other) in place],
            )
            for s in stages
        ]

    def step(self) -> Generator[simpy.Event, None, None]:
        """Returns a SimPy process of one step: it waits for its end, when all that is over is on record."""
        now, machine = self._now, self._machine
        # When each stage ends, and tickets of the ones that were begun.
        ends_s, begun = list[float](), dict[int, Ticket]()
        machine.begin()
        again = self._again
        repeated = dict[int, list[Handed | PricedRead]]()
        for n, (kind, layer, after, awaited, others, beside) in enumerate(self._stages):
            if (works := repeated.get(n)) is not None:
                after_s = machine.handed_over_s
                for m in after:
                    if ends_s[m] > after_s:
                        after_s = ends_s[m]
                end_s = again(works, after_s)
            else:
                machine.handed = []
                before = [begun[m] if m in begun else ForeseenTicket(self._env, None, ends_s[m]) for m in after]
                begun[n] = ticket = kind.begin(now, layer, tuple(before))
                end_s = ticket.end_s or 0.0
                # Begun layer by layer where it is noted.
                if others and now.notes is None and isinstance(kind, OfLayersAlike):
                    repeated |= self._repeated(kind, others, beside, machine.handed)
                if awaited:
                    now.awaits(ticket)
            ends_s.append(end_s)
            if awaited and end_s > machine.handed_over_s:
                machine.handed_over_s = end_s
        now.awaits(ticket)
        yield at(self._env, end_s)
        machine.queues.record(self._env.now)

    def _repeated(
        self, kind: OfLayersAlike, others: list[int], beside: list[int], works: list[Handed]
    ) -> dict[int, list[Handed | PricedRead]]:
        """Returns the work of the same stage of other layers, by its place; none where it has to be begun to be
        known."""
        if not any(on_storage for *_, on_storage in works):
            again: list[Handed | PricedRead] = [*works]
            return dict.fromkeys(others, again)
        reads = self._moved(kind, others)
        if works[0][0] != "Read" or any(on_storage for *_, on_storage in works[1:]) or len(reads) < len(others):
            return {}
        # Reads at the places of the step before have its prices, and others those of layers that were decided with
        # theirs.
        before, priced = self._priced.get(others[0], ([], None))
        if priced is None or any(one[0] is not other[0] for one, other in zip(before, reads, strict=True)):
            self._price(kind, others, reads, beside)
            _, priced = self._priced[others[0]]
        if priced is None:
            return {}
        return {n: [read, *works[1:]] for n, read in zip(others, priced, strict=True)}

    def _moved(self, kind: OfLayersAlike, stages: list[int]) -> list[Ranges]:
        moved = (kind.moved(self._now, self._stages[n].layer) for n in stages)
        return [ranges for ranges in moved if ranges is not None]

    def _price(self, kind: OfLayersAlike, others: list[int], reads: list[Ranges], beside: list[int]) -> None:
        """Prices these reads, and those of layers like the ones beside, whose places are known by now, in one call."""
        wanted = [(others, reads)]
        for n in beside:
            of_layer = self._stages[n].others
            if of_layer and len(found := self._moved(kind, of_layer)) == len(of_layer):
                wanted.append((of_layer, found))
        priced = self._storage.priced([ranges for _, some in wanted for ranges in some])
        if priced is None:
            self._priced[others[0]] = reads, self._storage.priced(reads)
            return
        for stages, some in wanted:
            self._priced[stages[0]] = some, priced[: len(some)]
            priced = priced[len(some) :]

    def _again(self, works: list[Handed | PricedRead], begin_s: float) -> float:
        """Hands over works, one after the other, the first of which may begin then; returns when the last ends. Nothing
        to do has been done before."""
        end_s, queues = 0.0, self._machine.queues
        for work in works:
            if isinstance(work, PricedRead):
                end_s = queues.batch("Read", begin_s, self._storage.priced_s(work), work.n_bytes)
            else:
                label, took_s, n_bytes, on_storage = work
                end_s = (queues.batch if on_storage else queues.op)(label, begin_s, took_s, n_bytes)
            if end_s > begin_s:
                begin_s = end_s
        return end_s
