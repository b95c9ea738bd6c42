"""The modelled world of a scenario: machines in one virtual time, their inputs generated, recorded or given."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.world import DEVICE, DecodeSizes, Inputs, Needs, Say
from kvferry.machine.machine import Machine, Refused
from kvferry.machine.ops import Selecting
from kvferry.machine.span import Tell
from kvferry.sim.access import Accesses
from kvferry.sim.channel import Switchboard
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.assignments import Assigning, GeneratedAssignments, RecordedAssignments
from kvferry.traces.chunks import ChunkTrace, generate_chunks
from kvferry.traces.critical_tokens import CriticalTokens, RecordedSelections
from kvferry.traces.rate import RateTrace
from kvferry.traces.requests import context_requests
from kvferry.traces.resolve import link_trace, load_trace
from kvferry.traces.selections import SelectionStream
from kvferry.traces.stored import StoredContext


class SimWorld:
    """SimMachines as the scenario describes them. Raises InputError for traces and cost models that do not exist."""

    def __init__(self, scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell) -> None:
        load = load_trace(scenario.load) if scenario.load else None
        loaded = (scenario.load.processor if scenario.load else None) or scenario.device.main
        device = scenario.device
        if needs.codec is not None:
            device = device.model_copy(update={"decompressor": device.decompressor.of(needs.codec)})
        self._given = inputs
        env = simpy.Environment()
        accesses = Accesses(env)
        self.machine = SimMachine(
            device,
            scenario.model,
            link_trace(scenario.link),
            name=DEVICE,
            rtt_s=scenario.link.rtt_s,
            costs=pick("cost model", COST_MODELS, scenario.costs.truth),
            load={loaded: load} if load else {},
            memory_bytes=scenario.budget.memory_bytes,
            selections=None if needs.kv is None else selections(scenario, needs.kv, inputs.selections),
            assignments=None if needs.kv is None else assignments(scenario, inputs.assignments),
            uplink=None if scenario.link.up is None else link_trace(scenario.link.up),
            tell=tell,
            env=env,
            switchboard=Switchboard(env, accesses),
        )
        accesses.connect(DEVICE, self.machine.access)
        self._modelled = None if needs.codec is None else ModelledContexts(scenario, needs.codec)
        self._main = device.main

    @property
    def machines(self) -> Mapping[str, Machine]:
        return {DEVICE: self.machine}

    @property
    def link(self) -> RateTrace:
        return self.machine.link.trace

    @property
    def available(self) -> RateTrace:
        return self.machine.processors[self._main].available

    @property
    def weights_refused(self) -> Refused | None:
        return self.machine.weights_refused

    def stored(self, sequence: int) -> StoredContext:
        if self._given.stored is not None:
            return self._given.stored[sequence]
        assert self._modelled is not None
        return self._modelled.stored(sequence)

    def inputs(self) -> Inputs:
        """Those that it was given: what it generates follows from the seed."""
        return self._given

    def energy_j(self, until_s: float) -> dict[str, float]:
        return self.machine.energy.energy_j(until_s)

    def storage_utilisation(self, until_s: float) -> float:
        return self.machine.storage.busy.utilisation(0.0, until_s) if self.machine.storage else 0.0

    def measured(self) -> dict[str, Any]:
        return {}


class ModelledContexts:
    """What a scenario's contexts would weigh in the cloud, by the model of a codec."""

    def __init__(self, scenario: Scenario, codec: str) -> None:
        self._scenario, self._codec = scenario, codec
        self._tokens = context_requests(scenario.context_reuse.workload, scenario.seed).contexts

    def stored(self, sequence: int) -> StoredContext:
        """Made when asked for: thousands of contexts need not be held at once. A recorded trace serves them all."""
        workload, model = self._scenario.context_reuse.workload, self._scenario.model
        chunks = self._recorded or generate_chunks(
            workload.content,
            self._tokens[sequence],
            model.layers,
            model.kv_heads,
            self._scenario.seed,
            sequence=sequence,
            chunk_tokens=workload.chunk_tokens,
        )
        return StoredContext.modelled(chunks, self._codec, model.head_dim)

    @cached_property
    def _recorded(self) -> ChunkTrace | None:
        path = self._scenario.context_reuse.workload.chunks
        return None if path is None else ChunkTrace.load(Path(path))


def selections(
    scenario: Scenario, sizes: DecodeSizes, given: SelectionStream | None
) -> Callable[[Selecting], np.ndarray] | None:
    """Answers the Select ops of a run, from `given` or the scenario's recording or generated; None where all is read.

    Raises InputError for a recording of another context.
    """
    workload = scenario.decode.workload
    if sizes.selected is None:
        return None
    if given is None and workload.selections is not None:
        given = SelectionStream.load(Path(workload.selections))
    if given is not None:
        if given.groups > sizes.layout.blocks:
            raise InputError(
                f"workload.selections: recorded over {given.groups:,} groups, this run has {sizes.layout.blocks:,}"
            )
        return RecordedSelections(given, sizes.layout.sequences)
    try:
        return CriticalTokens(
            layers=sizes.model.layers,
            sequences=sizes.layout.sequences,
            heads=sizes.heads,
            context=workload.context,
            selected=sizes.selected * sizes.group_tokens,
            group_tokens=sizes.group_tokens,
            overlap=workload.overlap,
            skew=workload.skew,
            seed=scenario.seed,
        )
    except ValueError as error:
        raise InputError(f"workload: {error}") from None


def assignments(scenario: Scenario, given: RecordedAssignments | None) -> Assigning:
    """Answers the Assign ops of a run, from `given` or generated: a key joins its predecessor's cluster as often as
    neighbouring steps share a critical token (workload.overlap)."""
    return given or GeneratedAssignments(stay=scenario.decode.workload.overlap, seed=scenario.seed)


@contextmanager
def sim_world(scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[SimWorld]:
    yield SimWorld(scenario, needs, inputs, tell)
