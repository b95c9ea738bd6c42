"""The modelled world of a batch that decodes with its KV on storage, or in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.world import DecodeSizes, Say
from kvferry.machine.machine import Refused
from kvferry.machine.ops import Select
from kvferry.machine.span import Tell
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.critical_tokens import CriticalTokens, RecordedSelections
from kvferry.traces.resolve import link_trace
from kvferry.traces.selections import SelectionStream


class SimDecodeWorld:
    """A SimMachine as the scenario describes it, its selections recorded or generated."""

    def __init__(self, scenario: Scenario, sizes: DecodeSizes | None, tell: Tell) -> None:
        self.machine = SimMachine(
            scenario.device,
            scenario.model,
            link_trace(scenario.link),
            costs=pick("cost model", COST_MODELS, scenario.costs.truth),
            memory_bytes=scenario.budget.memory_bytes,
            selections=None if sizes is None else selections(scenario, sizes),
            tell=tell,
        )

    @property
    def equal_steps(self) -> bool:
        return True

    @property
    def weights_refused(self) -> Refused | None:
        return self.machine.weights_refused

    def energy_j(self, until_s: float) -> dict[str, float]:
        return self.machine.energy.energy_j(until_s)

    def storage_utilisation(self, until_s: float) -> float:
        return self.machine.storage.busy.utilisation(0.0, until_s) if self.machine.storage else 0.0

    def measured(self) -> dict[str, Any]:
        return {}


@contextmanager
def sim_decode_world(scenario: Scenario, sizes: DecodeSizes | None, tell: Tell, say: Say) -> Iterator[SimDecodeWorld]:
    yield SimDecodeWorld(scenario, sizes, tell)


def selections(scenario: Scenario, sizes: DecodeSizes) -> Callable[[Select], np.ndarray] | None:
    """What answers the Select ops of a run; None where there are none. Raises InputError."""
    workload = scenario.workload
    if sizes.selected is None:
        return None
    if workload.selections is not None:
        stream = SelectionStream.load(Path(workload.selections))
        if stream.groups > sizes.layout.units:
            raise InputError(
                f"workload.selections: recorded over {stream.groups:,} groups, this run has {sizes.layout.units:,}"
            )
        return RecordedSelections(stream, sizes.layout.sequences)
    try:
        return CriticalTokens(
            layers=sizes.shape.layers,
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
