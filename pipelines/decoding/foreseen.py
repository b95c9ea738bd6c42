"""Decoding steps by arithmetic: what events would come to, where what is chosen does not depend on when.

A step's selections and look-ups are made for all layers in one call, and when its stages begin and end is a recurrence
over the list of stages. Tests hold it equal to the events.
"""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import simpy

from kvferry.machine.ops import Extents, Op
from kvferry.pipelines.decoding.computing import Attend, NextToken, PassOn
from kvferry.pipelines.decoding.fetching import ChooseBlocks, LookUp, RebuildKeys
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.upkeep import Learned
from kvferry.sim.foresight import Foresight

# Stages whose ops depend on nothing but how much there is.
_KINDS = {"select", "look_up", "bring", "rebuild", "attend", "feed_forward", "next_token"}


class _Worked(NamedTuple):
    """An op, or a batch of reads or writes. In order of their ends."""

    end_s: float
    start_s: float
    label: str
    n_bytes: float
    on_storage: bool


def foreseeable(plan: DecodePlan) -> bool:
    """Whether the steps of this plan are made of nothing but what is worked out here."""
    tiers = {*plan.tiers, *plan.last_tiers}
    # A selection of all there is grows with what is decoded, as a share of it does.
    at_end = plan.roles.selector.selected(plan.group_tokens, plan.layout.blocks)
    chooses = plan.selected is not None and plan.selected < plan.blocks and plan.selected == at_end
    # Of packed blocks several may be read as one.
    packed = plan.layout.alignment_bytes == 1
    return chooses and not packed and tiers == {"storage"} and {stage.kind for stage in plan.stages} <= _KINDS


class ForeseenSteps:
    """The steps of a batch after prefill, each worked out when it begins."""

    def __init__(self, now: DecodeState, foresight: Foresight) -> None:
        plan, stages = now.plan, now.plan.stages
        self._now, self._plan, self._seen = now, plan, foresight
        # One for all layers.
        self._resident = plan.roles.residency.start(plan.model.layers * plan.rows, plan.layout.blocks, plan.slots)
        place = {stage.key: n for n, stage in enumerate(stages)}
        self._stages = [(s.kind, s.layer, [place[key] for key in s.after], s.awaited) for s in stages]
        self._kinds = {stage.kind for stage in stages}
        # Of the storage: when its last batch began, when each direction is free, and when it works, in order of time.
        self._began_s = 0.0
        self._free_s: dict[str, float] = {}
        self._busy: list[tuple[float, float]] = []
        # Of it and what was worked on, what is not over yet.
        self._worked: list[_Worked] = []

    def step(self) -> Generator[simpy.Event, None, None]:
        """A SimPy process of one step: it waits for its end, when all that is over is on record."""
        now, plan, storage = self._now, self._plan, self._seen.storage
        found = self._look_up()
        read_s, read_bytes = self._reads(found)
        costs = self._costs(found)
        env, dispatch_s, ends = now.machine.env, self._seen.processor.dispatch_s, list[float]()
        handed_over = processor_s = env.now
        for kind, layer, after, awaited in self._stages:
            begin = handed_over
            for n in after:
                begin = max(begin, ends[n])
            if kind == "bring":
                end = self._batch("Read", begin, read_s[layer], read_bytes[layer])
            else:
                label, duration_s, n_bytes = costs[kind]
                begin = max(begin, processor_s)
                processor_s = end = self._end_beside(begin + dispatch_s, duration_s)
                self._worked.append(_Worked(end, begin, label, n_bytes, False))
            ends.append(end)
            if awaited:
                handed_over = end
        update = now.kept.append(Learned(()))
        if update is not None:
            assert update.written is not None, "clusters are not foreseen"
            written = Extents(*update.written(np.arange(plan.model.layers)))
            self._batch("Write", ends[-1], storage.seconds(written, writes=True), written.n_bytes)
        yield env.timeout(ends[-1] - env.now)
        self._record(env.now)

    def _look_up(self) -> Lookup:
        """Looks up, for all layers together, what a step selects."""
        chosen = self._seen.chosen(self._now.step)
        found = self._resident.look_up(BlockRows(chosen.reshape(-1, chosen.shape[-1])))
        self._now.record.looked_up(found, self._plan.group_tokens * (chosen.size - found.hits))
        return found

    def _reads(self, found: Lookup) -> tuple[list[float], list[int]]:
        """Seconds and bytes of what each layer lacks."""
        plan, storage = self._plan, self._seen.storage
        layers, stride = plan.model.layers, plan.layout.stride_bytes
        missing = found.missing.reshape(layers, plan.rows, -1)
        counts = missing.sum(axis=(1, 2)).tolist()
        if storage.spec.merges:
            ids = found.wanted.ids.reshape(missing.shape)
            rows = np.arange(plan.rows)[:, None]
            extents = [
                Extents(
                    *self._now.blocks.reads(layer, np.broadcast_to(rows, lacks.shape)[lacks], ids[layer][lacks]).ranges
                )
                for layer, lacks in enumerate(missing)
            ]
            return [storage.seconds(one) for one in extents], [n * stride for n in counts]
        # They lie within what prefill wrote.
        return [storage.seconds_of_equal(n, stride) for n in counts], [n * stride for n in counts]

    def _costs(self, found: Lookup) -> dict[str, tuple[str, float, float]]:
        """Label, seconds and bytes of every kind's op, in any layer."""
        now, plan = self._now, self._plan
        stored, tokens = now.kept.stored(0), found.wanted.widest * plan.group_tokens
        ops: dict[str, Op] = {
            "select": ChooseBlocks.op(plan, stored, now.step, 0),
            "look_up": LookUp.op(plan),
            "attend": Attend.op(plan, tokens + now.kept.recent(0) + 1),
            "feed_forward": PassOn.op(plan),
            "next_token": NextToken.op(plan),
        }
        if "rebuild" in self._kinds:
            ops["rebuild"] = RebuildKeys.op(plan, tokens)
        costs = {kind: self._seen.processor.cost(op) for kind, op in ops.items()}
        return {kind: (ops[kind].label, cost.duration_s, cost.n_bytes) for kind, cost in costs.items()}

    def _batch(self, label: str, after_s: float, took_s: float, n_bytes: float) -> float:
        """When a batch of reads or writes that is handed over now ends. It begins after all batches before it have
        begun."""
        lane = label if self._seen.storage.spec.duplex == "full" else "both"
        begin = max(after_s, self._began_s, self._free_s.get(lane, 0.0))
        self._began_s, self._free_s[lane] = begin, begin + took_s
        self._worked.append(_Worked(begin + took_s, begin, label, n_bytes, True))
        if self._busy and begin <= self._busy[-1][1]:
            self._busy[-1] = self._busy[-1][0], max(self._busy[-1][1], begin + took_s)
        else:
            self._busy.append((begin, begin + took_s))
        return begin + took_s

    def _end_beside(self, now: float, left: float) -> float:
        """When work that begins now ends; the storage slows it."""
        beside = self._seen.beside
        if beside == 1:
            return now + left
        for begin, end in self._busy:
            if end <= now:
                continue
            if now + left <= begin:
                break
            if now < begin:
                left -= begin - now
                now = begin
            if left <= (end - now) * beside:
                return now + left / beside
            left -= (end - now) * beside
            now = end
        return now + left

    def _record(self, now: float) -> None:
        """Put on record what is over, in the order of the ends."""
        over = sorted(one for one in self._worked if one.end_s <= now)
        self._worked = [one for one in self._worked if one.end_s > now]
        processor, storage = self._seen.processor, self._seen.storage
        for end_s, start_s, label, n_bytes, on_storage in over:
            (storage if on_storage else processor).record(label, start_s, end_s, n_bytes)
        # What is under way has been so until now.
        for begin, end in self._busy:
            storage.busy.add(begin, min(end, now))
        self._busy = [one for one in self._busy if one[1] > now]
