"""The modelled world of a scenario."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.world import Say
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.chunks import ChunkTrace, generate_chunks
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import link_trace, load_trace
from kvferry.traces.stored import StoredContext


class SimWorld:
    """A SimMachine as the scenario describes it, and contexts of generated or recorded chunks.

    `stored` gives other contexts. Raises InputError for traces and cost models that do not exist.
    """

    def __init__(
        self, scenario: Scenario, codec: str, tell: Tell, stored: Callable[[int], StoredContext] | None = None
    ) -> None:
        load = load_trace(scenario.load) if scenario.load else None
        loaded = (scenario.load.processor if scenario.load else None) or scenario.device.main
        device = scenario.device
        self.machine = SimMachine(
            device.model_copy(update={"decompressor": device.decompressor.of(codec)}),
            scenario.model,
            link_trace(scenario.link),
            rtt_s=scenario.link.rtt_s,
            costs=pick("cost model", COST_MODELS, scenario.costs.truth),
            load={loaded: load} if load else {},
            memory_bytes=scenario.budget.memory_bytes,
            tell=tell,
        )
        self._stored = stored or ModelledContexts(scenario, codec).stored
        self._main = scenario.device.main

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
        return self._stored(sequence)

    def energy_j(self, until_s: float) -> dict[str, float]:
        return self.machine.energy.energy_j(until_s)

    def measured(self) -> dict[str, Any]:
        return {}


class ModelledContexts:
    """What a scenario's contexts would weigh in the cloud, by the model of a codec."""

    def __init__(self, scenario: Scenario, codec: str) -> None:
        self._scenario, self._codec = scenario, codec

    def stored(self, sequence: int) -> StoredContext:
        """Made when asked for: thousands of contexts need not be held at once. A recorded trace serves them all."""
        workload, model = self._scenario.workload, self._scenario.model
        chunks = self._recorded or generate_chunks(
            workload.content,
            workload.context,
            model.layers,
            model.kv_heads,
            self._scenario.seed,
            sequence=sequence,
            chunk_tokens=workload.chunk_tokens,
        )
        return StoredContext.modelled(chunks, self._codec, model.head_dim)

    @cached_property
    def _recorded(self) -> ChunkTrace | None:
        path = self._scenario.workload.chunks
        return None if path is None else ChunkTrace.load(Path(path))


@contextmanager
def sim_world(scenario: Scenario, codec: str, tell: Tell, say: Say) -> Iterator[SimWorld]:
    yield SimWorld(scenario, codec, tell)
