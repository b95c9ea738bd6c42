"""Decoding with the KV cache on storage: prefill writes it out, every layer reads what it selects."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ops import (
    Bookkeep,
    DecodeAttention,
    Decompose,
    Extents,
    FeedForward,
    OutputHead,
    PrefillLayer,
    Reconstruct,
    Select,
    Selection,
)
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.offload_plan import DecodePlan
from kvferry.policies.offload.reuse_buffer import ReuseBuffer
from kvferry.policies.offload.rolling_buffer import RollingBuffer

# Told after every token: how many there are.
Told = Callable[[int], None]
Process = Generator[simpy.Event, Any, None]


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
        self.rolling = RollingBuffer(plan.context, plan.policy.group_tokens)
        layers, rows = plan.shape.layers, plan.sequences * plan.heads
        units = plan.layout.units
        self.buffers = [ReuseBuffer(rows, units, plan.slots) for _ in range(layers)] if plan.slots else None
        # Sequence and head of every unit of a selection, flat.
        k = plan.selected or 1
        self._sequence = np.repeat(np.arange(plan.sequences), plan.heads * k)
        self._head = np.tile(np.repeat(np.arange(plan.heads), k), plan.sequences)
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
        full = plan.context // plan.policy.group_tokens
        under_way: list[Ticket] = []
        done: tuple[Ticket, ...] = ()
        for layer in range(plan.shape.layers):
            computed = machine.submit(PrefillLayer(plan.sequences, plan.context), after=done)
            done = (computed,)
            under_way.append(machine.write(Extents(*plan.layout.stretches(layer, full)), after=done))
            if plan.policy.values_only:
                done = (machine.submit(Decompose(plan.sequences, plan.context), after=done),)
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
                arriving = yield from self._fetch(step, layer + 1, ())
            done = self._compute(reading)
            if not plan.policy.ahead and layer + 1 < layers:
                arriving = yield from self._fetch(step, layer + 1, (done,))
        last = machine.submit(OutputHead(plan.sequences), after=(done,))
        complete = self.rolling.append()
        if complete is not None:
            self._write_out(complete, last)
        yield last

    def _fetch(self, step: int, layer: int, after: tuple[Ticket, ...]) -> Generator[simpy.Event, Any, Ticket]:
        """Choose a layer's units and have what is not in memory read; the ticket of the read."""
        plan, machine = self.plan, self.machine
        if plan.selected is None:
            return machine.read(Extents(*plan.layout.stretches(layer, plan.units)), after=after)
        select = Select(
            plan.sequences,
            plan.units,
            plan.selected,
            step,
            layer,
            heads=plan.heads,
            keys=plan.keys,
            rank=plan.rank,
        )
        chosen: Selection = yield machine.submit(select, after=after)
        ids = chosen.ids.reshape(-1, plan.selected)
        self.record.units_wanted += ids.size
        units, sequence, head = ids.ravel(), self._sequence, self._head
        if self.buffers is not None:
            missing = self.buffers[layer].look_up(ids).missing.ravel()
            units, sequence, head = units[missing], sequence[missing], head[missing]
            self.record.units_reused += ids.size - units.size
        kept = machine.submit(Bookkeep(plan.sequences * plan.units_per_selection, plan.slots))
        return machine.read(Extents(*plan.layout.ranges(layer, sequence, units, head)), after=(kept,))

    def _compute(self, reading: Ticket) -> Ticket:
        """Attention over what was selected and what the rolling buffer holds, and the rest of the layer."""
        plan, machine = self.plan, self.machine
        selected = plan.context if plan.selected is None else plan.selected * plan.policy.group_tokens
        if plan.policy.values_only:
            machine.submit(Reconstruct(plan.sequences, selected, plan.rank), after=(reading,))
        tokens = selected + self.rolling.tokens + 1
        machine.submit(DecodeAttention(plan.sequences, tokens, self._gathered), after=(reading,))
        return machine.submit(FeedForward(plan.sequences))

    def _write_out(self, unit: int, after: Ticket) -> None:
        """A group that became complete, of every sequence and layer, goes to storage behind the reads."""
        layout = self.plan.layout
        ranges = [layout.stretches(layer, 1, first=unit) for layer in range(layout.layers)]
        offsets, lengths = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
        self.machine.write(Extents(offsets, lengths), after=(after,))
