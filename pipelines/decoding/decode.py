"""Decoding with the KV cache on storage: prefill writes it out, every layer reads what it selects."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ops import (
    Attended,
    Bookkeep,
    DecodeAttention,
    Decompose,
    Extents,
    FeedForward,
    OutputHead,
    PrefillLayer,
    Rebuilt,
    Reconstruct,
    Select,
    Selection,
)
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.rolling_buffer import RollingBuffer

# Told after every token: how many there are.
Told = Callable[[int], None]
Process = Generator[simpy.Event, Any, None]
# A read, what attention takes in once it has arrived, and how many tokens of a sequence these are, the new one too.
Reading = tuple[Ticket, Attended, int]


@dataclass
class DecodeRecord:
    """What happened: times on the run's clock, units over the whole run."""

    prefill_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    units_wanted: int = 0
    units_reused: int = 0


class OffloadedDecode:
    """A lock-step batch over one storage file. ``run`` is a SimPy process; ``record`` tells the story so far."""

    def __init__(self, machine: Machine, plan: DecodePlan, told: Told = lambda tokens: None) -> None:
        self.machine, self.plan, self._told = machine, plan, told
        self.record = DecodeRecord()
        self.rolling = RollingBuffer(plan.context, plan.policy.tokens_per_group)
        layers, rows = plan.shape.layers, plan.sequences * plan.heads
        units = plan.layout.units
        self.buffers = [ReuseBuffer(rows, units, plan.slots) for _ in range(layers)] if plan.slots else None
        # Sequence and head of every row of a selection.
        self._sequence = np.repeat(np.arange(plan.sequences), plan.heads)
        self._head = np.tile(np.arange(plan.heads), plan.sequences)
        self._gathered = plan.selected is not None

    def run(self, steps: int) -> Process:
        """Prefill, then `steps` tokens per sequence; the first of them comes from prefill."""
        yield from self._prefill()
        for step in range(steps - 1):
            yield from self._step(step)
            self.record.token_times_s.append(self.machine.env.now)
            self._told(len(self.record.token_times_s))

    def _prefill(self) -> Process:
        """Layer by layer: compute, and write the layer's KV out while the next is computed."""
        plan, machine = self.plan, self.machine
        full = plan.context // plan.policy.tokens_per_group
        under_way: list[Ticket] = []
        done: tuple[Ticket, ...] = ()
        for layer in range(plan.shape.layers):
            computed = machine.submit(PrefillLayer(plan.sequences, plan.context, layer), after=done)
            done = (computed,)
            under_way.append(machine.write(Extents(*plan.layout.stretches(layer, full)), after=done))
            if plan.policy.values_only:
                done = (machine.submit(Decompose(plan.sequences, plan.context, layer), after=done),)
        under_way.append(machine.submit(OutputHead(plan.sequences), after=done))
        yield machine.env.all_of(under_way)
        self.record.prefill_s = machine.env.now
        self.record.token_times_s.append(machine.env.now)
        self._told(1)

    def _step(self, step: int) -> Process:
        """One token per sequence. What goes to the processor is handed over layer by layer, in order."""
        plan, machine = self.plan, self.machine
        layers = plan.shape.layers
        # The first layer's query is known; later ones are predicted from the layer before, or wait for their own.
        arriving = yield from self._fetch(step, 0, ())
        for layer in range(layers):
            reading = arriving
            if plan.policy.ahead and layer + 1 < layers:
                # FlexGen's loop, on which these systems are built, begins a layer when what it reads has arrived.
                arriving = yield from self._fetch(step, layer + 1, (reading[0],))
            done = self._compute(layer, *reading)
            if not plan.policy.ahead and layer + 1 < layers:
                arriving = yield from self._fetch(step, layer + 1, (done,))
        complete = self.rolling.append()
        last = machine.submit(OutputHead(plan.sequences, complete), after=(done,))
        if complete is not None:
            self._write_out(complete, last)
        yield last

    def _fetch(self, step: int, layer: int, after: tuple[Ticket, ...]) -> Generator[simpy.Event, Any, Reading]:
        """Choose a layer's units and have what is not in memory read: the read, and what attention finds then."""
        plan, machine = self.plan, self.machine
        recent = self.rolling.tokens if plan.policy.rolling else 0
        # What was written while decoding, too.
        stored, group = self.rolling.first_unit, plan.group_tokens
        if plan.selected is None:
            self._rebuild_keys(layer, stored * group, None, after)
            read = machine.read(Extents(*plan.layout.stretches(layer, stored)), after=after)
            return read, Attended(layer, None, None, recent), stored * group + recent + 1
        select = Select(
            plan.sequences,
            stored,
            plan.selected_of(stored),
            step,
            layer,
            heads=plan.heads,
            keys=plan.keys_of(stored),
            rank=plan.scored_rank,
        )
        chosen: Selection = yield machine.submit(select, after=after)
        ids = chosen.ids.reshape(self._sequence.size, -1)
        self.record.units_wanted += ids.size
        missing, slots = np.ones(ids.shape, bool), None
        if self.buffers is not None:
            found = self.buffers[layer].look_up(ids)
            missing, slots = found.missing, found.slots
            self.record.units_reused += found.hits
        per_row = missing.sum(axis=1)
        sequence, head = np.repeat(self._sequence, per_row), np.repeat(self._head, per_row)
        kept = machine.submit(Bookkeep(plan.sequences * plan.units_per_selection, plan.slots))
        extents = Extents(*plan.layout.ranges(layer, sequence, ids[missing], head))
        read = machine.read(extents, after=(kept,))
        selected = ids.shape[1] * group
        self._rebuild_keys(layer, selected, ids, (kept,))
        return read, Attended(layer, missing, slots, recent), selected + recent + 1

    def _rebuild_keys(self, layer: int, tokens: int, ids: np.ndarray | None, after: tuple[Ticket, ...]) -> None:
        """Those of a choice of tokens, while their values are read (ShadowKV's second stream)."""
        if self.plan.policy.values_only:
            rebuilt = Rebuilt(layer, ids)
            self.machine.submit(Reconstruct(self.plan.sequences, tokens, self.plan.rank, rebuilt), after=after)

    def _compute(self, layer: int, reading: Ticket, kv: Attended, tokens: int) -> Ticket:
        """Attention over what was selected and what the rolling buffer holds, and the rest of the layer."""
        plan, machine = self.plan, self.machine
        machine.submit(DecodeAttention(plan.sequences, tokens, self._gathered, kv), after=(reading,))
        return machine.submit(FeedForward(plan.sequences, layer))

    def _write_out(self, unit: int, after: Ticket) -> None:
        """A group that became complete, of every sequence and layer, goes to storage behind the reads."""
        layout = self.plan.layout
        ranges = [layout.stretches(layer, 1, first=unit) for layer in range(layout.layers)]
        offsets, lengths = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
        self.machine.write(Extents(offsets, lengths), after=(after,))
