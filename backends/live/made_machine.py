"""A described machine made real."""

import math

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine, Switchboard
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.world import Described, tell_of
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.policies.engine_memory import engine_holdings
from kvferry.policies.ledger import Ledger


def made_machine(
    one: Described, parts: MachineParts, env: WallClockEnvironment, switchboard: Switchboard | None, tell: Tell
) -> tuple[LiveMachine, Refused | None]:
    """A machine with its model's weights in its memory, and why they do not fit, if so."""
    device, memory = one.scenario.device, one.scenario.device.memory
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
    return machine, machine.memory.hold(Ledger(engine_holdings(one.scenario)).at(0))
