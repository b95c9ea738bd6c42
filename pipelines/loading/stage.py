"""Makes stored contexts ready for a loading system, and says what a load can count on: a stage of any flow."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from kvferry.machine.machine import Machine
from kvferry.machine.ops import Extents, Op
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.outlook import Outlook, intake_values_per_s, placing_s
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.systems import LoadingSystem
from kvferry.policies.loading.problem import LoadProblem
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.device import DecompressorSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext


def price_s(scenario: Scenario, cost_model: str) -> Callable[[Op], np.ndarray]:
    """Prices ops on the idle main processor, dispatch included, by a named cost model."""
    spec = scenario.device.processors[scenario.device.main]
    costs = main_costs(cost_model, scenario.device, scenario.model)
    return lambda op: costs.durations_s(op) + spec.dispatch_s


@dataclass(frozen=True, kw_only=True)
class OnStorage:
    """What lies on local storage of a context's units [T, L, C]. ``read_bytes``: what each takes there, infinite where
    it does not lie there; ``extents``: where units lie; ``bytes_per_s``: how fast they are read, one behind the other.
    ``in_cloud`` [T]: whether a token chunk lies in the cloud, too; the others cannot be streamed."""

    read_bytes: np.ndarray
    extents: Callable[[tuple[int, ...]], Extents]
    bytes_per_s: float
    in_cloud: np.ndarray

    def beside(self, problem: LoadProblem) -> LoadProblem:
        """Returns the problem with this as a third path."""
        streamed = np.where(self.in_cloud[:, None, None], problem.stream_bytes, np.inf)
        return replace(problem, stream_bytes=streamed, read_bytes=self.read_bytes)


class LoadingStage:
    """Loads contexts on a scenario's device under a system. `planned_bytes_per_s`: what planners take the link for;
    `estimate_s` prices ops for them; `available` tells the share of the main processor that background load leaves at a
    time. ``processor_from_s``: when the processor can begin, known once the first request has come."""

    def __init__(
        self,
        scenario: Scenario,
        system: LoadingSystem,
        planned_bytes_per_s: float,
        estimate_s: Callable[[Op], Any],
        available: Callable[[float], float] = lambda now_s: 1.0,
        processor_from_s: float = 0.0,
    ) -> None:
        self._scenario, self._system = scenario, system
        # A link that is down for good is planned with as one that is hopelessly slow: planners divide by it.
        self._planned_bytes_per_s = max(planned_bytes_per_s, 1.0)
        self.estimate_s, self._available = estimate_s, available
        self.processor_from_s = processor_from_s
        self.pace = Pace(decoders=scenario.device.decompressor.workers)

    def context(self, stored: StoredContext, sequence: int, chunks: np.ndarray | None = None) -> Context:
        """Returns what is stored as the pipeline needs it, or of it these token chunks alone: the others are there."""
        before = None
        tokens, blocks, sizes = stored.tokens, stored.active_blocks, stored.encoding.encoded_bytes
        if chunks is not None:
            before = (np.cumsum(tokens) - tokens)[chunks]
            tokens, blocks, sizes = tokens[chunks], blocks[chunks], sizes[chunks]
        return Context(
            sequence=sequence,
            model=self._scenario.model,
            coupling=self._scenario.coupling,
            tokens=tokens,
            active_blocks=blocks,
            encoded_bytes=sizes,
            level_scale=stored.encoding.level_scale,
            entropy_coded=stored.encoding.entropy_coded,
            before=before,
            numbers=chunks,
        )

    def intake_s(self, context: Context) -> np.ndarray:
        """What each unit [T, L, C] takes of the time in which the device decodes and copies what arrives, at least."""
        memory, value_bytes = self._scenario.device.memory, context.model.kv_value_bytes
        return context.values / intake_values_per_s(self._decompressor(context), memory, value_bytes)

    def placing_s(self, context: Context) -> float:
        """What the last transfer of a load takes at least, once it has left the link."""
        memory, value_bytes = self._scenario.device.memory, context.model.kv_value_bytes
        return placing_s(self._decompressor(context), memory, value_bytes, float(context.values.min()))

    def _decompressor(self, context: Context) -> DecompressorSpec | None:
        """None: nothing is decoded."""
        return self._scenario.device.decompressor.of(self._system.codec) if context.entropy_coded else None

    def outlook(self, context: Context) -> Outlook:
        """Returns what the loader can count on."""
        intake_s = float(self.intake_s(context).sum())
        return Outlook(
            bytes_per_s=self._planned_bytes_per_s,
            rtt_s=self._scenario.link.rtt_s,
            intake_bytes_per_s=float(context.stream_bytes.sum()) / intake_s if intake_s else inf,
            available=self._available,
            processor_from_s=self.processor_from_s,
        )

    def begin(self, machine: Machine, context: Context, request: int, here: OnStorage | None = None) -> ContextLoad:
        """Begins to load a context that has device and link for itself; `here`: what of it lies on local storage."""
        problem, outlook = context.problem(self.estimate_s), self.outlook(context)
        if here is not None:
            problem, outlook = here.beside(problem), replace(outlook, read_bytes_per_s=here.bytes_per_s)
        return ContextLoad(
            machine,
            context,
            problem,
            self._system.new_loader(),
            request=request,
            outlook=outlook,
            pace=self.pace,
            local=None if here is None else here.extents,
        )
