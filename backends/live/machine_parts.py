"""What a real machine is made of besides its threads and queues."""

import math
from typing import Any

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine, OpRunner, Switchboard
from kvferry.backends.needs import KvOnStorage
from kvferry.backends.world import Described, Inputs, KvBetweenTurns, ModelledKv, tell_of
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.policies.engine_memory import engine_holdings
from kvferry.policies.ledger import Ledger
from kvferry.specs.errors import KvferryError
from kvferry.traces.stored import StoredContext


class MachineParts:
    """A runner of ops, and what else one sort of need takes; by itself nothing else."""

    runner: OpRunner
    # Where nothing is kept between turns.
    between_turns: KvBetweenTurns = ModelledKv()

    def machine_options(self) -> dict[str, Any]:
        """Further arguments of the LiveMachine: its fetcher and decoder, its storage."""
        return {}

    def warm_up(self, machine: LiveMachine) -> None:
        """Runs once what is slow the first time (choosing kernels, starting threads, mapping the pages of buffers), so
        that no request pays for it. A model that decodes was warmed before it was handed to the machine."""

    def turn(self, number: int, need: KvOnStorage) -> None:
        """A turn decodes from here on, whose KV lies elsewhere than in memory. KvferryError where there are none."""
        raise KvferryError("this workload has no turns")

    def stored(self, sequence: int) -> StoredContext:
        """What a sequence's context takes in the cloud. KvferryError where there is none."""
        raise KvferryError("this workload has no contexts in a cloud")

    def inputs(self) -> Inputs:
        """What a simulation of this run needs to be given the same."""
        return Inputs()

    def measured(self) -> dict[str, Any]:
        """Figures of the run beside its records: answers, memory, storage."""
        return {}


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
