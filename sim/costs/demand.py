"""The one place where an op becomes arithmetic: floating-point operations and bytes, by kernel kind.

Left out of all ops: activations (prefill tiles are bound by compute, decoding by weights and KV), norms,
rotary embedding and sampling (their time is the profile's ``layer_s``), top-k inside a Select.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kvferry.machine.ops import (
    Advance,
    Bookkeep,
    DecodeAttention,
    DecodeStep,
    Decompose,
    FeedForward,
    Number,
    Op,
    OutputHead,
    Prefill,
    PrefillHead,
    PrefillLayer,
    Project,
    Reconstruct,
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
        self._key_width = model.kv_heads * model.head_dim
        self._value_bytes = model.kv_value_bytes
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
            OutputHead: (self._output_head, 0.0),
            PrefillLayer: (self._prefill_layer, 1.0),
            Decompose: (self._decompose, 0.0),
            Reconstruct: (self._reconstruct, 0.0),
            Select: (self._select, 0.0),
            # Only the host's time, which the profile gives per unit.
            Bookkeep: (lambda op: [], 0.0),
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
        attended, dense = self._layer(1, op.tokens, op.context_tokens)
        return [
            (attended[0], self._layers * attended[1], self._layers * attended[2]),
            (dense[0], self._layers * dense[1], self._layers * dense[2]),
            ("gemv", self._head_flop, self._head_bytes),
        ]

    def _prefill_layer(self, op: PrefillLayer) -> list[Work]:
        return self._layer(op.batch, op.tokens, 0)

    def _layer(self, batch: Number, tokens: Number, context_tokens: Number) -> list[Work]:
        pairs = tokens * context_tokens + tokens * (tokens + 1) / 2
        # Every block of queries reads the keys before it.
        query_blocks = -(-tokens // QUERY_BLOCK)
        kv_tokens = query_blocks * (context_tokens + (tokens + 1) / 2)
        return [
            ("attention", batch * pairs * self._pair_flop, batch * kv_tokens * self._kv_bytes),
            ("gemm", batch * tokens * self._layer_flop, self._layer_bytes),
        ]

    def _decompose(self, op: Decompose) -> list[Work]:
        # R-SVD of a tall matrix (Golub and Van Loan): about 6 m n^2 + 20 n^3 for the factors.
        flop = 6 * op.tokens * self._key_width**2 + 20 * self._key_width**3
        return [("svd", op.batch * flop, op.batch * op.tokens * self._score_bytes)]

    def _reconstruct(self, op: Reconstruct) -> list[Work]:
        keys = op.batch * op.tokens
        return [("gemm", 2 * keys * op.rank * self._key_width, keys * self._score_bytes)]

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
        attend = self._attend(op.batch, op.attended_tokens)
        # Gathering reads every key and value once and writes it once.
        return [("gather", 0, 2 * attend[2]), attend] if op.gathered else [attend]

    def _output_head(self, op: OutputHead) -> list[Work]:
        return [("gemv", op.batch * self._head_flop, self._head_bytes)]

    def _feed_forward(self, op: FeedForward) -> list[Work]:
        return [("gemv", op.batch * self._layer_flop, self._layer_bytes)]

    def _select(self, op: Select) -> list[Work]:
        # Every key is scored by every query head: by default one representative key per group and KV head.
        keys = op.batch * (op.groups if op.keys is None else op.keys)
        if op.rank is None:
            return [("scoring", keys * self._score_flop, keys * self._score_bytes)]
        share = op.rank / self._key_width
        return [("scoring", keys * share * self._score_flop, keys * op.rank * self._value_bytes)]


@lru_cache(maxsize=64)
def _arithmetic(model: ModelSpec) -> Arithmetic:
    return Arithmetic(model)


def work_of(op: Op, model: ModelSpec) -> list[Work]:
    """(kernel kind, flop, bytes) of an op; ``Arithmetic(model)`` is the same for many ops of one model."""
    return _arithmetic(model)(op)
