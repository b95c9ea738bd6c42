"""The real world of a scenario: its model on this device, and what its workload needs beside it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from kvferry.backends.live.decoding.parts import DecodingParts
from kvferry.backends.live.engine.machine import LiveMachine, OpRunner
from kvferry.backends.live.loading.cloud_parts import LoadingParts
from kvferry.backends.world import DEVICE, Inputs, Needs, Say
from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Tell
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import link_trace
from kvferry.traces.stored import StoredContext


class Parts(Protocol):
    """What a workload needs of a real world beside its model."""

    @property
    def runner(self) -> OpRunner: ...

    def machine_options(self) -> dict[str, Any]:
        """Further arguments of the LiveMachine: its fetcher and decoder, its storage."""
        ...

    def warm_up(self, machine: LiveMachine) -> None:
        """Do first what is slow the first time: kernels are chosen, threads get theirs, buffers their pages. None of it
        belongs to a request."""
        ...

    def stored(self, sequence: int) -> StoredContext: ...

    def inputs(self) -> Inputs: ...

    def measured(self) -> dict[str, Any]: ...


class LiveWorld:
    """A LiveMachine on the parts of a workload. Use ``live_world``, which opens and closes all of it."""

    def __init__(self, scenario: Scenario, parts: Parts, tell: Tell, stack: ExitStack) -> None:
        self.parts = parts
        self._link = link_trace(scenario.link)
        self.machine = LiveMachine(
            DEVICE,
            parts.runner,
            capacity_bytes=scenario.budget.memory_bytes or scenario.device.memory.free_bytes,
            main=scenario.device.main,
            tell=tell,
            **parts.machine_options(),
        )
        stack.enter_context(self.machine)
        weights = self.machine.memory.reserve(scenario.model.weight_bytes, "weights")
        self._weights_refused = weights if isinstance(weights, Refused) else None
        parts.warm_up(self.machine)

    @property
    def machines(self) -> Mapping[str, Machine]:
        return {DEVICE: self.machine}

    @property
    def link(self) -> RateTrace:
        return self._link

    @property
    def available(self) -> RateTrace:
        return RateTrace.constant(1.0)

    @property
    def weights_refused(self) -> Refused | None:
        return self._weights_refused

    def stored(self, sequence: int) -> StoredContext:
        return self.parts.stored(sequence)

    def inputs(self) -> Inputs:
        return self.parts.inputs()

    def energy_j(self, until_s: float) -> dict[str, float]:
        return {}

    def storage_utilisation(self, until_s: float) -> float:
        return self.machine.storage_busy.utilisation(0.0, until_s)

    def measured(self) -> dict[str, Any]:
        memory = self.machine.memory
        held = {"resident_bytes": memory.resident_bytes(), "device_bytes": memory.device_bytes()}
        return {key: value for key, value in held.items() if value is not None} | self.parts.measured()


@contextmanager
def live_world(scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[LiveWorld]:
    """The scenario's real world for as long as the block lasts. It makes its inputs from tensors: `inputs` is unused.

    Raises InputError for what is wanted and cannot be had here: a model that is not there or differs from the
    scenario's, heads that cannot be computed alone, background load, a codec that does not run; StorageFull when the
    file with the KV has no room.
    """
    with ExitStack() as stack:
        parts: Parts = (
            DecodingParts(scenario, needs, say, stack)
            if needs.codec is None
            else LoadingParts(scenario, needs.codec, say, stack)
        )
        yield LiveWorld(scenario, parts, tell, stack)
