"""Costs that one can follow on paper: so much per token of a prompt, so much per step of decoding."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvferry.machine.ops import DecodeStep, Number, Op, Prefill
from kvferry.sim.cost import Cost
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec

# By the processor's kind: seconds per token of a prompt, and per step of decoding.
SECONDS = {"gpu": (1e-3, 20e-3), "npu": (0.1e-3, 10e-3)}


class ByHand:
    """A CostModel."""

    def __init__(self, processor: ProcessorSpec, model: ModelSpec) -> None:
        self._prefill_s, self._step_s = SECONDS[processor.kind]

    def cost(self, op: Op) -> Cost:
        if isinstance(op, Prefill):
            return Cost(self._prefill_s * float(op.tokens))
        assert isinstance(op, DecodeStep), op
        return Cost(self._step_s)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        return np.asarray(self.cost(op).duration_s)


@contextmanager
def by_hand() -> Iterator[None]:
    """The cost model `by-hand`."""
    COST_MODELS["by-hand"] = ByHand
    try:
        yield
    finally:
        del COST_MODELS["by-hand"]
