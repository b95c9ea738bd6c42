"""The modelled world of a scenario: machines in one virtual time, their inputs generated, recorded or given."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import simpy

from kvferry.backends.needs import KvOfTurns, KvOnStorage, Needs
from kvferry.backends.sim.cells import Cells, on_course
from kvferry.backends.sim.crowd import SimCrowd
from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.sim.machine_parts import SimParts
from kvferry.backends.sim.noted import Noted
from kvferry.backends.sim.parts import parts_for
from kvferry.backends.sim.seldom_collected import SELDOM_COLLECTED
from kvferry.backends.world import (
    NO_INPUTS,
    Described,
    Inputs,
    ModelledKv,
    OneTurn,
    Say,
    WholeWorld,
    described,
    tell_of,
)
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.machine.warmth import Warmth
from kvferry.policies.decode.upkeep import Ahead
from kvferry.policies.engine_memory import engine_holdings
from kvferry.policies.ledger import Ledger
from kvferry.sim.access import Access, Accesses
from kvferry.sim.channel import Switchboard
from kvferry.sim.costs.cost_model import COST_MODELS, shared
from kvferry.sim.environment import Environment
from kvferry.sim.foresight import Foresight
from kvferry.specs.assist import AssistSpec
from kvferry.specs.errors import pick
from kvferry.specs.link import LinkSpec
from kvferry.specs.machine import DEVICE, DEVICES, device_name
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace
from kvferry.traces.request import Request
from kvferry.traces.resolve import link_trace, load_trace
from kvferry.traces.round_trips import late_of, round_trips_of
from kvferry.traces.stored import StoredContext


class SimWorld(WholeWorld):
    """SimMachines as the scenario describes them, each on its own link. Raises InputError for traces, cost models and
    machines that do not exist."""

    def __init__(self, scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell) -> None:
        self._given = inputs
        self.between_turns = ModelledKv(inputs)
        self.arrived: list[Request] = []
        env = Environment()
        self._accesses = accesses = Accesses(env)
        self._switchboard = Switchboard(env, accesses)
        self._noted = Noted(tell)
        if isinstance(needs.get(DEVICE), KvOfTurns):
            tell = self._noted.tell
        self._tell = tell
        # Thousands of machines on links that are alike replay one trace.
        trace_of = cache(link_trace)
        self._machines: dict[str, SimMachine] = {}
        self._costs = shared(pick("cost model", COST_MODELS, scenario.costs.truth))
        self._trace_of = trace_of
        self._assist = scenario.workload if isinstance(scenario.workload, AssistSpec) else None
        self._cells: Cells | None = None
        if self._assist is not None and self._assist.cells is not None and scenario.link is not None:
            self._cells = Cells(env, scenario.link, scenario.seed, trace_of)
        for one in described(scenario, needs):
            # What was recorded is the device's; others draw from seeds of their own.
            parts = parts_for(_with_own_seed(one), one.need, inputs if one.name == DEVICE else Inputs())
            told = tell_of(one.name, tell)
            access = None
            if one.name == DEVICE and self._cells is not None and (cell := self._cell_of(0)) is not None:
                access = self._cells.access(cell, told)
            machine = self._made(one, parts, env, told, access)
            self._machines[one.name] = machine
            if one.name == DEVICE:
                self.machine, self._stored = machine, parts.stored
                self._crowd = SimCrowd(machine, self._cell_of, self._another)
                self._keys, self._first = parts.keys, (one, parts)

    def _made(
        self, one: Described, parts: SimParts, env: simpy.Environment, tell: Tell, access: Access | None = None
    ) -> SimMachine:
        seen, link, trace_of = one.scenario, one.link if access is None else None, self._trace_of
        machine = SimMachine(
            parts.device,
            seen.model,
            None if link is None else trace_of(link),
            name=one.name,
            rtt_s=0.0 if link is None else round_trips_of(link).least_s,
            late=None if link is None else late_of(link, seen.seed, one.name),
            costs=self._costs,
            load={} if seen.load is None else {seen.load.processor or seen.device.main: load_trace(seen.load)},
            memory_bytes=seen.budget.memory_bytes,
            held=Ledger(engine_holdings(seen)).at(0),
            answers=parts.answers,
            mapped=parts.mapped,
            uplink=None if link is None or link.up is None else trace_of(link.up),
            access=access,
            tell=tell,
            env=env,
            switchboard=self._switchboard,
        )
        if machine.access is not None:
            self._accesses.connect(one.name, machine.access)
        return machine

    def _cell_of(self, n: int) -> int | None:
        return None if self._assist is None or self._cells is None else self._assist.cell_of(n)

    def _another(self, number: int, link: LinkSpec | None, cell: int | None) -> SimMachine:
        one, parts = self._first
        told, access, link = tell_of(DEVICES, self._tell), None, link or one.link
        if cell is not None and self._cells is not None:
            access = self._cells.access(cell, told)
        elif link is not None:
            link = on_course(link, one.scenario.seed, number, self._trace_of)
        of = one._replace(name=device_name(number), link=link)
        return self._made(of, parts, self.machine.env, told, access)

    @property
    def crowd(self) -> SimCrowd:
        return self._crowd

    @property
    def machines(self) -> Mapping[str, SimMachine]:
        return self._machines

    @property
    def link(self) -> RateTrace:
        assert self.machine.link is not None
        return self.machine.link.trace

    @property
    def available(self) -> RateTrace:
        return self.machine.processors[self.machine.device.main].available

    @property
    def foresight(self) -> Foresight | None:
        # What other machines send may slow the device at any time.
        return self.machine.foresight if len(self._machines) == 1 else None

    @property
    def keys(self) -> Ahead | None:
        return self._keys

    @property
    def may_skip(self) -> bool:
        return self._given == NO_INPUTS

    def note(self) -> None:
        self._noted.begin(self.machine.env.now)

    def go_on(self, seconds: float) -> simpy.Event:
        return self._noted.go_on(self.machine.env, self.machine.queues, seconds)

    def turn(self, number: int, scenario: Scenario, need: KvOnStorage) -> OneTurn:
        parts = parts_for(scenario, need, (self._given.turns or {}).get(number, Inputs()))
        machine = self.machine.answering(parts.answers)
        return OneTurn(machine, machine.foresight, parts.keys)

    @property
    def weights_refused(self) -> Refused | None:
        refusals = (machine.weights_refused for machine in self._machines.values())
        return next((refusal for refusal in refusals if refusal is not None), None)

    def stored(self, sequence: int) -> StoredContext:
        return self._stored(sequence)

    def inputs(self) -> Inputs:
        """The inputs that it was given, with the requests that have arrived. Everything else follows from the seed."""
        return replace(self._given, arrivals=tuple(self.arrived)) if self.arrived else self._given

    def energy_j(self, until_s: float, machine: str = DEVICE) -> dict[str, float]:
        return self._machines[machine].energy.energy_j(until_s)

    def storage_utilisation(self, until_s: float) -> float:
        return self.machine.storage.busy.utilisation(0.0, until_s) if self.machine.storage else 0.0

    def warmth(self, until_s: float) -> Warmth | None:
        heat = self.machine.heat
        return None if heat is None else heat.warmth(until_s)

    def measured(self) -> dict[str, Any]:
        return {}


def _with_own_seed(one: Described) -> Scenario:
    """The scenario as a machine sees it, what is drawn for it being its own: the device's from the scenario's seed."""
    if one.name == DEVICE:
        return one.scenario
    digest = hashlib.sha256(f"{one.scenario.seed} {one.name}".encode()).digest()
    return one.scenario.model_copy(update={"seed": int.from_bytes(digest[:7], "big")})


@contextmanager
def sim_world(scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[SimWorld]:
    with SELDOM_COLLECTED:
        yield SimWorld(scenario, needs, inputs, tell)
