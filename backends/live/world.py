"""The real world of a scenario: its models on this device, and what its workload needs beside them."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, Self

import simpy

from kvferry.backends.live.engine.channel import SocketSwitchboard
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine, Switchboard
from kvferry.backends.live.machine_parts import MachineParts, made_machine
from kvferry.backends.live.parts import NoKvParts, check_needs, parts_for
from kvferry.backends.live.wire.caller import CallingSwitchboard, CloudAddress
from kvferry.backends.needs import KvOnStorage, Needs
from kvferry.backends.world import Described, Inputs, KvBetweenTurns, OneTurn, Say, WholeWorld, described, tell_of
from kvferry.cloud.child_server import ChildServer
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.sim.access import Access, Accesses, access_over
from kvferry.specs.errors import InputError, KvferryError, OutOfMemory
from kvferry.specs.link import LinkSpec
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace
from kvferry.traces.request import Request
from kvferry.traces.resolve import link_trace
from kvferry.traces.round_trips import late_of, round_trips_of
from kvferry.traces.stored import StoredContext

# The variable with the token for a cloud elsewhere.
TOKEN = "KVFERRY_TOKEN"
# The module that serves a scenario's further machines; above this room, and so known by its name alone.
CLOUD_PROCESS = "kvferry.api.serving"
# The cloud loads its model first.
_CLOUD_START_S = 300.0


class LiveWorld(WholeWorld):
    """A LiveMachine for each machine that the workload needs: all in this process, or the device alone where the others
    are elsewhere. Use ``live_world``, which opens and closes all of it."""

    def __init__(self, scenario: Scenario, needs: Needs, tell: Tell, say: Say, stack: ExitStack) -> None:
        self._link = link_trace(scenario.link)
        self.arrived: list[Request] = []
        self._weights_refused: Refused | OutOfMemory | None = None
        check_needs(needs)
        machines = described(scenario, needs)
        accesses: Accesses | None = None
        env, where = WallClockEnvironment(), scenario.live.further_machines
        switchboard: Switchboard | None = None
        if len(machines) > 1:
            accesses = Accesses(env)
            if where == "within":
                switchboard = stack.enter_context(closing(SocketSwitchboard(env, folder=None, carry=accesses)))
            else:
                # A cloud elsewhere is reached over the real link.
                accesses = accesses if where == "beside" else None
                calling = calling_the_cloud(scenario, where, env, accesses, say, stack)
                switchboard = stack.enter_context(closing(calling))
                machines = machines[:1]
        self._parts = {one.name: self._parts_for(one, say, stack) for one in machines}
        self._machines: dict[str, LiveMachine] = {}
        for one in machines:
            machine, refused = made_machine(one, self._parts[one.name], env, switchboard, tell)
            self._machines[one.name] = stack.enter_context(machine)
            self._weights_refused = self._weights_refused or refused
        self.machine = self._machines[DEVICE]
        # The device last: where it is warmed, the clock is set to 0.
        for name in reversed(self._machines):
            try:
                self._parts[name].warm_up(self._machines[name])
            except OutOfMemory as error:
                self._weights_refused = self._weights_refused or error
        if accesses is not None:
            # Only now: traces of links begin when the clock does.
            for one in machines:
                if one.link is not None:
                    access = self._machines[one.name].access = _access(env, one, one.link, tell)
                    accesses.connect(one.name, access)

    def _parts_for(self, one: Described, say: Say, stack: ExitStack) -> MachineParts:
        """What a machine is made of; nothing where there is no memory for it."""
        try:
            return parts_for(one.scenario, one.need, say, stack)
        except OutOfMemory as error:
            self._weights_refused = self._weights_refused or error
            return NoKvParts()

    @property
    def parts(self) -> MachineParts:
        """The device's."""
        return self._parts[DEVICE]

    @property
    def machines(self) -> Mapping[str, LiveMachine]:
        return self._machines

    @property
    def between_turns(self) -> KvBetweenTurns:
        return self.parts.between_turns

    @property
    def crowd(self) -> Self:
        return self

    @property
    def devices(self) -> list[LiveMachine]:
        return [self.machine]

    def device(self, n: int, link: LinkSpec | None = None) -> LiveMachine:
        if n:
            raise InputError(f"workload.devices: a real run has one device, not {n + 1}")
        return self.machine

    def leave(self, n: int) -> None:
        pass

    @property
    def private(self) -> bool:
        return True

    def stays_j(self) -> dict[str, float]:
        return {}

    @property
    def link(self) -> RateTrace:
        return self._link

    @property
    def available(self) -> RateTrace:
        return RateTrace.constant(1.0)

    @property
    def foresight(self) -> None:
        return None

    @property
    def keys(self) -> None:
        return None

    @property
    def may_skip(self) -> bool:
        return False

    def note(self) -> None:
        """Nothing is noted: a real device skips nothing."""

    def go_on(self, seconds: float) -> simpy.Event:
        raise KvferryError("a real device does not go on by itself: all tokens are decoded")

    def turn(self, number: int, scenario: Scenario, need: KvOnStorage) -> OneTurn:
        self.parts.turn(number, need)
        return OneTurn(self.machine, None, None)

    @property
    def weights_refused(self) -> Refused | OutOfMemory | None:
        return self._weights_refused

    def stored(self, sequence: int) -> StoredContext:
        return self.parts.stored(sequence)

    def inputs(self) -> Inputs:
        return replace(self.parts.inputs(), arrivals=tuple(self.arrived) or None, from_the_first=True)

    def energy_j(self, until_s: float, machine: str = DEVICE) -> dict[str, float]:
        return {}

    def storage_utilisation(self, until_s: float) -> float:
        return self.machine.storage.busy.utilisation(0.0, until_s)

    def measured(self) -> dict[str, Any]:
        """Memory that the process holds, and what the device's parts observed. What a further machine's parts observed
        stands under the machine's name."""
        memory = self.machine.memory
        held = {"resident_bytes": memory.resident_bytes(), "device_bytes": memory.device_bytes()}
        found = {key: value for key, value in held.items() if value is not None} | self.parts.measured()
        for name, parts in self._parts.items():
            if name != DEVICE and (of_machine := parts.measured()):
                found[name] = of_machine
        return found


def _access(env: WallClockEnvironment, one: Described, link: LinkSpec, tell: Tell) -> Access:
    up = None if link.up is None else link_trace(link.up)
    network = one.scenario.device.network
    return access_over(
        env,
        link_trace(link),
        up,
        round_trips_of(link).least_s,
        network,
        tell_of(one.name, tell),
        late_of(link, one.scenario.seed, one.name),
    )


def calling_the_cloud(
    scenario: Scenario, where: str, env: WallClockEnvironment, carry: Accesses | None, say: Say, stack: ExitStack
) -> CallingSwitchboard:
    """Channels to further machines that a server has: one at a URL, or beside this process, which it starts. Raises
    InputError, KvferryError."""
    token = os.environ.get(TOKEN) or None
    if where == "beside":
        say("starting the cloud's process")
        # A secret of the two: other users of this machine can reach the cloud, too.
        token = secrets.token_hex(16)
        settings = {"scenario": scenario.model_dump(mode="json", by_alias=True), "token": token}
        where = stack.enter_context(ChildServer(CLOUD_PROCESS, settings, _CLOUD_START_S)).url
    # In the cloud, devices of many processes meet, all called `device` in their own.
    return CallingSwitchboard(
        env, CloudAddress(where, token), carry, known_as=lambda name: f"{name}-{secrets.token_hex(4)}"
    )


@contextmanager
def live_world(scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[LiveWorld]:
    """The scenario's real world for as long as the block lasts. It makes its inputs from tensors; of
    `inputs`, only arrivals can be given to a real run, and the flow has them.

    Raises InputError for what is wanted and cannot be had here: a model that is not there or differs from the
    scenario's, heads that cannot be computed alone, background load, a codec that does not run; StorageFull when the
    file with the KV has no room.
    """
    with ExitStack() as stack:
        yield LiveWorld(scenario, needs, tell, say, stack)
