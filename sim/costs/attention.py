"""A roofline in which block-sparse attention has a model of its own."""

from typing import Any, Protocol

import numpy as np

from kvferry.machine.ops import Advance, Number, Op, PrefillHead
from kvferry.sim.cost import Cost
from kvferry.sim.costs.roofline import Roofline


class AttentionModel(Protocol):
    def seconds(
        self, tokens: Number, active_blocks: Number, *, kv_heads: int, context_tokens: Number, load: Number
    ) -> Any:
        """Attention of a token chunk over blocks of `kv_heads` heads, after `context_tokens` others; 0 without
        blocks. A number for numbers, an array for arrays."""
        ...


class AttentionCosts:
    """A cost model: `attention` prices block-sparse attention, the roofline everything else."""

    def __init__(self, roofline: Roofline, attention: AttentionModel) -> None:
        self.attention = attention
        self._roofline = roofline
        self._kv_heads = roofline.arithmetic.model.kv_heads

    def cost(self, op: Op) -> Cost:
        """Seconds on an idle processor, and bytes of memory traffic, of one op with plain numbers."""
        if not isinstance(op, PrefillHead | Advance):
            return self._roofline.cost(op)
        op = self._roofline.compiled(op)
        blocks, *rest = self._roofline.arithmetic(op)
        dense_s, n_bytes = self._roofline.price(rest)
        seconds = self._attention_s(op, 0.0) + dense_s + self._roofline.fixed_s(op)
        return Cost(seconds, n_bytes + blocks[2])

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of each op that the arrays in `op` describe, broadcast."""
        if not isinstance(op, PrefillHead | Advance):
            return self._roofline.durations_s(op)
        op = self._roofline.compiled(op)
        dense_s = self._roofline.price_arrays(self._roofline.arithmetic(op)[1:])
        return np.asarray(self._attention_s(op, load) + dense_s + self._roofline.fixed_s(op))

    def _attention_s(self, op: Any, load: Number) -> Any:
        if isinstance(op, PrefillHead):
            blocks, kv_heads = op.active_blocks * (1 - op.final_layer), 1
        else:
            blocks, kv_heads = op.active_blocks, self._kv_heads
        return self.attention.seconds(op.tokens, blocks, kv_heads=kv_heads, context_tokens=op.context_tokens, load=load)
