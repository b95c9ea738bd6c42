"""What every cost model can be asked, and the cost models by name."""

from typing import Protocol

import numpy as np

from kvferry.machine.ops import Number, Op
from kvferry.sim.cost import Cost
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec


class CostModel(Protocol):
    """Prices ops on an idle processor; the queue adds ``dispatch_s`` and what background load costs."""

    def cost(self, op: Op) -> Cost:
        """Duration and memory traffic of one op with plain numbers: a few microseconds."""
        ...

    def durations_s(self, op: Op, *, context_tokens: Number | None = None, load: Number = 0.0) -> np.ndarray:
        """Seconds of every op that the arrays in `op` describe, broadcast together; ``cost`` gives the same.

        `context_tokens` (tokens before the op's own) and `load` (utilisation by others, 0 to below 1) matter
        to models of block-sparse attention; others ignore them.
        """
        ...


class Builder(Protocol):
    def __call__(self, processor: ProcessorSpec, model: ModelSpec) -> CostModel: ...


COST_MODELS: dict[str, Builder] = {"roofline": Roofline}
