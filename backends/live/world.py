"""The real world of a scenario: its models on this device, and what its workload needs beside them."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from kvferry.backends.live.engine.channel import SocketSwitchboard
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.live.parts import parts_for
from kvferry.backends.needs import Needs
from kvferry.backends.world import DEVICE, Described, Inputs, Say, described, tell_of
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.sim.access import Access, Accesses, access_over
from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace
from kvferry.traces.request import Request
from kvferry.traces.resolve import link_trace
from kvferry.traces.round_trips import late_of, round_trips_of
from kvferry.traces.stored import StoredContext


class LiveWorld:
    """A LiveMachine for each machine that the workload needs, all in this process. Use ``live_world``, which opens and
    closes all of it."""

    def __init__(self, scenario: Scenario, needs: Needs, tell: Tell, say: Say, stack: ExitStack) -> None:
        self._link = link_trace(scenario.link)
        self.arrived: list[Request] = []
        self._weights_refused: Refused | None = None
        machines = described(scenario, needs)
        self._parts = {one.name: parts_for(one.scenario, one.need, say, stack) for one in machines}
        env, accesses = WallClockEnvironment(), None
        switchboard = None
        if len(machines) > 1:
            accesses = Accesses(env)
            switchboard = SocketSwitchboard(env, folder=None, carry=accesses)
            stack.callback(switchboard.close)
        self._machines: dict[str, LiveMachine] = {}
        for one in machines:
            self._machines[one.name] = stack.enter_context(self._made(one, env, switchboard, tell))
        self.machine = self._machines[DEVICE]
        # The device last: where it is warmed, the clock is set to 0.
        for name in reversed(self._machines):
            self._parts[name].warm_up(self._machines[name])
        if accesses is not None:
            # Only now: traces of links begin when the clock does.
            for one in machines:
                if one.link is not None:
                    access = self._machines[one.name].access = _access(env, one, one.link, tell)
                    accesses.connect(one.name, access)

    def _made(
        self, one: Described, env: WallClockEnvironment, switchboard: SocketSwitchboard | None, tell: Tell
    ) -> LiveMachine:
        """A machine with its model's weights in its memory. Where they do not fit, `weights_refused` says so."""
        device, parts = one.scenario.device, self._parts[one.name]
        memory = device.memory
        host_bytes = math.inf if memory.host_capacity_bytes is None else memory.host_capacity_bytes
        machine = LiveMachine(
            one.name,
            parts.runner,
            capacity_bytes=one.scenario.budget.memory_bytes or memory.free_bytes,
            host_bytes=None if memory.unified else host_bytes,
            main=device.main,
            switchboard=switchboard,
            tell=tell_of(one.name, tell),
            env=env,
            **parts.machine_options(),
        )
        weights = machine.memory.reserve(one.scenario.model.weight_bytes, "weights")
        if isinstance(weights, Refused) and self._weights_refused is None:
            self._weights_refused = weights
        return machine

    @property
    def parts(self) -> MachineParts:
        """The device's."""
        return self._parts[DEVICE]

    @property
    def machines(self) -> Mapping[str, LiveMachine]:
        return self._machines

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

    @property
    def weights_refused(self) -> Refused | None:
        return self._weights_refused

    def stored(self, sequence: int) -> StoredContext:
        return self.parts.stored(sequence)

    def inputs(self) -> Inputs:
        return replace(self.parts.inputs(), arrivals=tuple(self.arrived) or None, from_the_first=True)

    def energy_j(self, until_s: float, machine: str = DEVICE) -> dict[str, float]:
        return {}

    def storage_utilisation(self, until_s: float) -> float:
        return self.machine.storage_busy.utilisation(0.0, until_s)

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
