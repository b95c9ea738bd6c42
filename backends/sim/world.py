"""The modelled world of a scenario: machines in one virtual time, their inputs generated, recorded or given."""

import gc
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import simpy

from kvferry.backends.needs import KvOfTurns, KvOnStorage, Needs
from kvferry.backends.sim.cells import Cells, on_course
from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.sim.machine_parts import SimParts
from kvferry.backends.sim.parts import parts_for
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
from kvferry.machine.span import Span, Tell
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

# How many times as seldom as else Python looks for cycles among objects that have stayed, and among young ones.
_SELDOM, _RARELY = 100, 10


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
        # Of what the device does, what is noted, and since when; None: nothing.
        self._noted: list[Span] | None = None
        self._noted_s = 0.0
        if isinstance(needs.get(DEVICE), KvOfTurns):
            tell = self._noting(tell)
        self._tell = tell
        # Thousands of machines on links that are alike replay one trace.
        trace_of = cache(link_trace)
        self._machines: dict[str, SimMachine] = {}
        self._costs = shared(pick("cost model", COST_MODELS, scenario.costs.truth))
        self._trace_of = trace_of
        # Of devices that have something to do, and since when; machines of others, and how long each had had.
        self._staying: dict[int, tuple[SimMachine, list[SimMachine]]] = {}
        self._arrived_s: dict[int, float] = {}
        self._spare: dict[tuple[int, int | None], list[SimMachine]] = {}
        self.devices: list[SimMachine] = []
        self._assist = scenario.workload if isinstance(scenario.workload, AssistSpec) else None
        self._cells: Cells | None = None
        if self._assist is not None and self._assist.cells is not None and scenario.link is not None:
            self._cells = Cells(env, scenario.link, scenario.seed, trace_of)
        self._stayed_s: defaultdict[SimMachine, float] = defaultdict(float)
        for one in described(scenario, needs):
            # What was recorded is the device's; others draw from seeds of their own.
            parts = parts_for(_with_own_seed(one), one.need, inputs if one.name == DEVICE else Inputs())
            told = tell_of(one.name, tell)
            access = None
            if one.name == DEVICE and self._cells is not None and self._assist is not None:
                access = self._cells.access(self._assist.cell_of(0), told)
            machine = self._made(one, parts, env, told, access)
            self._machines[one.name] = machine
            if one.name == DEVICE:
                self.machine, self._stored = machine, parts.stored
                self.devices.append(machine)
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
            selections=parts.selections,
            clusters=parts.clusters,
            attended=parts.attended,
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

    def device(self, n: int, link: LinkSpec | None = None) -> SimMachine:
        """A machine of devices that have nothing to do serves another one on the same network, or in the same cell:
        there are as many as work at once. Their spans are kept together, as of `devices`. Each begins its link's trace
        at a time of its own."""
        if n not in self._staying:
            cell = None if self._assist is None or self._cells is None else self._assist.cell_of(n)
            spare = self._spare.setdefault((id(link), cell), [])
            machine = (spare.pop() if spare else self._another(link, cell)) if n else self.machine
            if n and machine.heat is not None:
                # Another device's, or the same one's after a while.
                machine.heat.cool(machine.env.now)
            self._staying[n] = machine, spare
            self._arrived_s[n] = machine.env.now
        return self._staying[n][0]

    def _another(self, link: LinkSpec | None, cell: int | None) -> SimMachine:
        one, parts = self._first
        number, told, access = len(self.devices), tell_of(DEVICES, self._tell), None
        link = link or one.link
        if cell is not None and self._cells is not None:
            access = self._cells.access(cell, told)
        elif link is not None:
            link = on_course(link, one.scenario.seed, number, self._trace_of)
        of = one._replace(name=device_name(number), link=link)
        machine = self._made(of, parts, self.machine.env, told, access)
        self.devices.append(machine)
        return machine

    def leave(self, n: int) -> None:
        machine, spare = self._staying.pop(n)
        self._stayed_s[machine] += machine.env.now - self._arrived_s.pop(n)
        if n:
            spare.append(machine)

    @property
    def private(self) -> bool:
        return False

    def stays_j(self) -> dict[str, float]:
        found, now = Counter[str](), self.machine.env.now
        for machine, stayed_s in self._stayed_s.items():
            # All its work was within its stays.
            found.update(machine.energy.energy_j(now))
            found.subtract({name: idle_w * (now - stayed_s) for name, idle_w in machine.energy.idle_w.items()})
        return dict(found)

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
        self._noted, self._noted_s = [], self.machine.env.now

    def go_on(self, seconds: float) -> simpy.Event:
        noted, self._noted = self._noted or [], None
        return self.machine.env.process(self.machine.go_on(noted, self._noted_s, seconds))

    def _noting(self, tell: Tell) -> Tell:
        def told(span: Span) -> None:
            if self._noted is not None:
                self._noted.append(span)
            tell(span)

        return told

    def turn(self, number: int, scenario: Scenario, need: KvOnStorage) -> OneTurn:
        parts = parts_for(scenario, need, (self._given.turns or {}).get(number, Inputs()))
        machine = self.machine.answering(parts)
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
    young, middle, old = gc.get_threshold()
    # What thousands of devices leave behind is in no cycles, and looking through all of it again and again takes a
    # sixth of the time; through what they have at hand, a twelfth.
    gc.set_threshold(_RARELY * young, middle, _SELDOM * old)
    try:
        yield SimWorld(scenario, needs, inputs, tell)
    finally:
        gc.set_threshold(young, middle, old)
