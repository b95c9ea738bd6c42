"""The one place where an op becomes arithmetic: floating-point operations and bytes, by kernel kind.

Left out everywhere: activations (prefill tiles are bound by compute, decoding by weights and KV), norms,
rotary embedding and sampling (their time is the profile's ``layer_s``), top-k inside a Select.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kvferry.machine.ops import (
    Advance,
    DecodeAttention,
    DecodeStep,
    FeedForward,
    Number,
    Op,
    Prefill,
    PrefillHead,
    Project,
    Select,
)
from kvferry.specs.device import Kernel
from kvferry.specs.model import ModelSpec
from kvferry.traces.chunks import KEY_BLOCK, QUERY_BLOCK

# Kernel kind, floating-point operations, bytes to or from memory.
Work = tuple[Kernel, Number, Number]


class Arithmetic:
    """What the ops of one model come to. Counts may be numpy arrays; so are the works then."""

    def __init__(self, model: ModelSpec) -> None:
        self.model = model
        query_width = model.query_heads * model.head_dim
        weight_bytes = model.weight_bits / 8
        self._layers = model.layers
        self._kv_heads = model.kv_heads
        self._layer_flop = 2 * model.layer_parameters
        self._layer_bytes = model.layer_parameters * weight_bytes
        self._projection_flop = 2 * model.projection_parameters
        self._projection_bytes = model.projection_parameters * weight_bytes
        self._head_flop = 2 * model.head_parameters
        self._head_bytes = model.head_parameters * model.embedding_bits / 8
        # One query attending one key, all heads: a product for the score, one for the value.
        self._pair_flop = 4 * query_width
        # Keys and values of one token in one layer, all KV heads.
        self._kv_bytes = 2 * model.kv_heads * model.head_dim * model.kv_value_bytes
        # A block serves all query heads of its KV head, which read its keys and values once.
        self.block_flop = QUERY_BLOCK * KEY_BLOCK * self._pair_flop / model.kv_heads
        self.block_bytes = KEY_BLOCK * self._kv_bytes / model.kv_heads
        self._score_flop = 2 * query_width
        self._score_bytes = self._kv_bytes / 2
        self._rules: dict[type, tuple[Callable[[Any], list[Work]], float]] = {
            PrefillHead: (self._prefill_head, 1 / model.kv_heads),
            Project: (self._project, 0.0),
            Advance: (self._advance, 1.0),
            Prefill: (self._prefill, float(model.layers)),
            DecodeStep: (self._decode_step, float(model.layers)),
            DecodeAttention: (self._decode_attention, 0.0),
            FeedForward: (self._feed_forward, 1.0),
            Select: (self._select, 0.0),
        }

    def __call__(self, op: Op) -> list[Work]:
        """The works of an op, one after the other. Block-sparse attention, where there is any, comes first."""
        return self._rules[type(op)][0](op)

    def layer_passes(self, op: Op) -> float:
        """How many layers the op runs through, for the fixed cost of a layer."""
        return self._rules[type(op)][1]

    def _blocks(self, active_blocks: Number) -> Work:
        return "sparse_attention", active_blocks * self.block_flop, active_blocks * self.block_bytes

    def _prefill_head(self, op: PrefillHead) -> list[Work]:
        # 1 for an inner layer; at the last one nothing but the projection that emits K and V (IV-C: t_proj).
        inner = 1 - op.final_layer
        rest_flop = inner * (self._layer_flop - self._projection_flop)
        rest_bytes = inner * (self._layer_bytes - self._projection_bytes)
        flop = op.tokens * ((self._projection_flop + rest_flop) / self._kv_heads)
        return [
            self._blocks(op.active_blocks * inner),
            ("gemm", flop, (self._projection_bytes + rest_bytes) / self._kv_heads),
        ]

    def _project(self, op: Project) -> list[Work]:
        return [("gemm", op.tokens * self._projection_flop, self._projection_bytes)]

    def _advance(self, op: Advance) -> list[Work]:
        flop = op.tokens * (self._layer_flop - self._projection_flop)
        return [self._blocks(op.active_blocks), ("gemm", flop, self._layer_bytes - self._projection_bytes)]

    def _prefill(self, op: Prefill) -> list[Work]:
        pairs = op.tokens * op.context_tokens + op.tokens * (op.tokens + 1) / 2
        # Every block of queries reads the keys before it.
        query_blocks = -(-op.tokens // QUERY_BLOCK)
        kv_tokens = query_blocks * (op.context_tokens + (op.tokens + 1) / 2)
        return [
            ("attention", self._layers * pairs * self._pair_flop, self._layers * kv_tokens * self._kv_bytes),
            ("gemm", self._layers * op.tokens * self._layer_flop, self._layers * self._layer_bytes),
            ("gemv", self._head_flop, self._head_bytes),
        ]

    def _decode_step(self, op: DecodeStep) -> list[Work]:
        kernel, flop, n_bytes = self._attend(op.batch, op.context_tokens)
        return [
            (kernel, self._layers * flop, self._layers * n_bytes),
            ("gemv", self._layers * op.batch * self._layer_flop, self._layers * self._layer_bytes),
            ("gemv", op.batch * self._head_flop, self._head_bytes),
        ]

    def _attend(self, batch: Number, tokens: Number) -> Work:
        return "decode_attention", batch * tokens * self._pair_flop, batch * tokens * self._kv_bytes

    def _decode_attention(self, op: DecodeAttention) -> list[Work]:
        return [self._attend(op.batch, op.attended_tokens)]

    def _feed_forward(self, op: FeedForward) -> list[Work]:
        return [("gemv", op.batch * self._layer_flop, self._layer_bytes)]

    def _select(self, op: Select) -> list[Work]:
        # One representative key per group and KV head, scored by every query head.
        groups = op.batch * op.groups
        return [("scoring", groups * self._score_flop, groups * self._score_bytes)]


@lru_cache(maxsize=64)
def _arithmetic(model: ModelSpec) -> Arithmetic:
    return Arithmetic(model)


def work_of(op: Op, model: ModelSpec) -> list[Work]:
    """(kernel kind, flop, bytes) of an op; ``Arithmetic(model)`` is the same for many ops of one model."""
    return _arithmetic(model)(op)
