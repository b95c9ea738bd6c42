"""Decoding steps by arithmetic: what events would come to, where what is chosen does not depend on when.

A step's selections and look-ups are made for all layers in one call, and when its stages begin and end is a recurrence
over the list of stages. Tests hold it equal to the events.
"""

import inspect
from collections.abc import Generator

import numpy as np
import simpy

from kvferry.machine.instant import at
from kvferry.machine.ops import Extents, Op
from kvferry.pipelines.decoding.computing import Attend, NextToken, PassOn
from kvferry.pipelines.decoding.fetching import ChooseBlocks, LookUp, RebuildKeys
from kvferry.pipelines.decoding.noted import Entry, Move
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.selector import Selector
from kvferry.policies.decode.upkeep import Learned
from kvferry.sim.foreseen_queues import ForeseenQueues, TogetherQueues
from kvferry.sim.foresight import Foresight
from kvferry.sim.slowing_queues import Piece

# Stages whose ops depend on nothing but how much there is.
_KINDS = {"select", "look_up", "bring", "rebuild", "attend", "feed_forward", "next_token"}


def foreseeable(plan: DecodePlan, foresight: Foresight) -> bool:
    """Returns whether the steps of this plan are made of nothing but what is worked out here."""
    if foresight.chosen is None:
        return False
    tiers = {*plan.tiers, *plan.last_tiers}
    # A selection of all there is grows with what is decoded, as a share of it does.
    at_end = plan.roles.selector.selected(plan.choice.group_tokens, plan.layout.blocks)
    chooses = (
        plan.choice.selected is not None
        and plan.choice.selected < plan.choice.blocks
        and plan.choice.selected == at_end
    )
    # Several packed blocks may be read as one.
    packed = plan.layout.alignment_bytes == 1
    # All that is chosen is wanted: what a selector of one's own makes of the machine's answer is asked each time.
    as_chosen = inspect.unwrap(type(plan.roles.selector).take) is Selector.take
    return (
        chooses
        and as_chosen
        and not packed
        and tiers == {"storage"}
        and {stage.kind for stage in plan.stages} <= _KINDS
    )


class ForeseenSteps:
    """The steps of a batch after prefill, each worked out when it begins."""

    def __init__(self, now: DecodeState, foresight: Foresight) -> None:
        plan, stages = now.plan, now.plan.stages
        self._now, self._plan, self._seen = now, plan, foresight
        # One for all layers.
        self._resident = plan.roles.residency.start(
            plan.model.layers * plan.rows, plan.layout.blocks, plan.staying.slots
        )
        place = {stage.key: n for n, stage in enumerate(stages)}
        self._stages = [(s.kind, s.layer, [place[key] for key in s.after], s.awaited) for s in stages]
        self._kinds = {stage.kind for stage in stages}
        # The step under way asks for these.
        self._ops = dict[str, Op]()
        both = foresight.processor, foresight.storage, foresight.beside
        self._queues = ForeseenQueues(*both)
        self._together = None if foresight.reads_beside == 1 else TogetherQueues(*both, foresight.reads_beside)

    def step(self) -> Generator[simpy.Event, None, None]:
        """Returns a SimPy process of one step: it waits for its end, when all that is over is on record."""
        env = self._now.machine.env
        queues = self._queues if self._together is None else self._together
        yield at(env, self._ends_s() if self._together is None else self._ends_together_s(self._together))
        queues.record(env.now)

    def _ends_s(self) -> float:
        """Returns when the step ends, stage by stage."""
        found = self._look_up()
        read_s, read_bytes = self._reads(found)
        costs = self._costs(found)
        self._note(found)
        ends = list[float]()
        handed_over = self._now.machine.env.now
        for kind, layer, after, awaited in self._stages:
            begin = handed_over
            for n in after:
                begin = max(begin, ends[n])
            if kind == "bring":
                end = self._queues.batch("Read", begin, read_s[layer], read_bytes[layer])
            else:
                label, duration_s, n_bytes = costs[kind]
                end = self._queues.op(label, begin, duration_s, n_bytes)
            ends.append(end)
            if awaited:
                handed_over = end
        if (written := self._written()) is not None:
            self._queues.batch("Write", ends[-1], *written)
        return ends[-1]

    def _ends_together_s(self, queues: TogetherQueues) -> float:
        """Returns the same where computing slows reads: all stages are handed over before any of them ends."""
        found = self._look_up()
        read_s, read_bytes = self._reads(found)
        costs = self._costs(found)
        self._note(found)
        pieces, awaited_last = list[Piece](), list[Piece]()
        queues.begin(self._now.machine.env.now)
        for kind, layer, after, awaited in self._stages:
            before = [*awaited_last, *(pieces[n] for n in after)]
            if kind == "bring":
                piece = queues.batch("Read", before, read_s[layer], read_bytes[layer])
            else:
                label, duration_s, n_bytes = costs[kind]
                piece = queues.op(label, before, duration_s, n_bytes)
            pieces.append(piece)
            if awaited:
                awaited_last = [piece]
        if (written := self._written()) is not None:
            queues.batch("Write", pieces[-1:], *written)
        return queues.work_off(pieces[-1])

    def _written(self) -> tuple[float, int] | None:
        """Returns seconds and bytes of what the step has completed and is written behind it."""
        update = self._now.kept.append(Learned(()))
        if update is None:
            return None
        assert update.written is not None, "clusters are not foreseen"
        written = Extents(*update.written(np.arange(self._plan.model.layers)))
        if (notes := self._now.notes) is not None:
            notes.entries.append(Entry(Move(written, "device", "storage"), (len(notes.entries) - 1,)))
        return self._seen.storage.seconds(written, writes=True), written.n_bytes

    def _look_up(self) -> Lookup:
        """Looks up, for all layers together, what a step selects."""
        assert self._seen.chosen is not None
        chosen = self._seen.chosen(self._now.step)
        found = self._resident.look_up(BlockRows(chosen.reshape(-1, chosen.shape[-1])))
        self._now.record.looked_up(found, self._plan.choice.group_tokens * (chosen.size - found.hits))
        return found

    def _reads(self, found: Lookup) -> tuple[list[float], list[int]]:
        """Returns seconds and bytes of what each layer lacks."""
        plan, storage = self._plan, self._seen.storage
        layers, stride = plan.model.layers, plan.layout.stride_bytes
        missing = found.missing.reshape(layers, plan.rows, -1)
        counts = missing.sum(axis=(1, 2)).tolist()
        if storage.spec.merges:
            return [storage.seconds(one) for one in self._extents(found)], [n * stride for n in counts]
        # They lie within what prefill wrote.
        return [storage.seconds_of_equal(n, stride) for n in counts], [n * stride for n in counts]

    def _extents(self, found: Lookup) -> list[Extents]:
        """Returns what each layer lacks."""
        plan = self._plan
        missing = found.missing.reshape(plan.model.layers, plan.rows, -1)
        ids, rows = found.wanted.ids.reshape(missing.shape), np.arange(plan.rows)[:, None]
        return [
            Extents(*self._now.blocks.reads(layer, np.broadcast_to(rows, lacks.shape)[lacks], ids[layer][lacks]).ranges)
            for layer, lacks in enumerate(missing)
        ]

    def _note(self, found: Lookup) -> None:
        """Notes what the step asks for, where steps are noted."""
        if (notes := self._now.notes) is None:
            return
        reads, first = self._extents(found), len(notes.entries)
        for kind, layer, after, awaited in self._stages:
            work = Move(reads[layer], "storage", "device") if kind == "bring" else self._ops[kind]
            notes.entries.append(Entry(work, tuple(first + n for n in after), awaited))
        notes.entries[-1].awaited = True

    def _costs(self, found: Lookup) -> dict[str, tuple[str, float, float]]:
        """Label, seconds and bytes of every kind's op, in any layer."""
        now, plan = self._now, self._plan
        stored, tokens = now.kept.stored(0), found.wanted.widest * plan.choice.group_tokens
        attended = tokens + now.kept.recent(0) + 1
        now.record.attends(attended, now.tokens_stored, plan.model.layers)
        self._ops = ops = {
            "select": ChooseBlocks.op(plan, stored, now.step, 0),
            "look_up": LookUp.op(plan),
            "attend": Attend.op(plan, attended),
            "feed_forward": PassOn.op(plan, "storage"),
            "next_token": NextToken.op(plan),
        }
        if "rebuild" in self._kinds:
            ops["rebuild"] = RebuildKeys.op(plan, tokens)
        costs = {kind: self._seen.processor.cost(op) for kind, op in ops.items()}
        return {kind: (ops[kind].label, cost.duration_s, cost.n_bytes) for kind, cost in costs.items()}
