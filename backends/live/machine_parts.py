"""What a real machine is made of besides its threads and queues."""

from typing import Any

from kvferry.backends.live.engine.machine import LiveMachine, OpRunner
from kvferry.backends.world import Inputs
from kvferry.specs.errors import KvferryError
from kvferry.traces.stored import StoredContext


class MachineParts:
    """A runner of ops, and what else one sort of need takes; by itself nothing else."""

    runner: OpRunner

    def machine_options(self) -> dict[str, Any]:
        """Further arguments of the LiveMachine: its fetcher and decoder, its storage."""
        return {}

    def warm_up(self, machine: LiveMachine) -> None:
        """Runs once what is slow the first time (choosing kernels, starting threads, mapping the pages of buffers), so
        that no request pays for it. A model that decodes was warmed before it was handed to the machine."""

    def stored(self, sequence: int) -> StoredContext:
        """What a sequence's context takes in the cloud. KvferryError where there is none."""
        raise KvferryError("this workload has no contexts in a cloud")

    def inputs(self) -> Inputs:
        """What a simulation of this run needs to be given the same."""
        return Inputs()

    def measured(self) -> dict[str, Any]:
        """Figures of the run beside its records: answers, memory, storage."""
        return {}
