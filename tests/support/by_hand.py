"""Costs that one can follow on paper: so much per token of a prompt, so much per step of decoding."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvferry.machine.ops import DecodeStep, Number, Op, OutputHead, Prefill, PrefillLayer
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
            return Cost(self._prefill_s * float(op.tokens) * float(op.batch))
        assert isinstance(op, DecodeStep), op
        return Cost(self._step_s)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        return np.asarray(self.cost(op).duration_s)


class Crowded(ByHand):
    """Steps take longer the more requests share them, and the more tokens these have read: in the cloud 3 ms each, and
    1 us for a token."""

    def cost(self, op: Op) -> Cost:
        if not isinstance(op, DecodeStep) or self._step_s > 10e-3:
            return super().cost(op)
        batch, context = float(op.batch), float(op.context_tokens)
        return Cost(self._step_s + batch * (3e-3 + 1e-6 * context))


class LayersByHand(ByHand):
    """1 ms for a token through all four layers, 20 ms for a step."""

    def cost(self, op: Op) -> Cost:
        if isinstance(op, PrefillLayer):
            return Cost(self._prefill_s * float(op.tokens) / 4)
        return Cost(0.0) if isinstance(op, OutputHead) else super().cost(op)


@contextmanager
def by_hand() -> Iterator[None]:
    """The cost models `by-hand` and `crowded`."""
    COST_MODELS.update({"by-hand": ByHand, "crowded": Crowded})
    try:
        yield
    finally:
        del COST_MODELS["by-hand"], COST_MODELS["crowded"]
