"""The matrices of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvferry.specs.weight_format import ROUTER_BITS, WEIGHT_FORMATS

if TYPE_CHECKING:
    from kvferry.specs.model import ModelSpec


@dataclass(frozen=True)
class Matrices:
    """How many weights a model's matrices have, in how many bits, and how many of them are read."""

    model: ModelSpec

    @property
    def query_parameters(self) -> int:
        """Weights of one layer's projection to queries."""
        model = self.model
        width = model.query_heads * model.head_dim
        rank = model.latent.q_lora_rank if model.latent else None
        return model.hidden * width if rank is None else rank * (model.hidden + width)

    @property
    def projection_parameters(self) -> int:
        """Weights of one layer's K and V projections: all that emitting a layer's KV costs. Of a latent cache, of the
        projection to it."""
        return self.model.hidden * self.model.kv_entry_values

    @property
    def qkv_parameters(self) -> int:
        """Weights that a token passes in one layer before it attends. Its queries are taken to the space of a latent
        cache, where keys need not be made (DeepSeek-V2, 2.1.2: the key's up-projection is absorbed)."""
        model, absorbed = self.model, 0
        if model.latent:
            absorbed = model.latent.kv_lora_rank * model.query_heads * (model.head_dim - model.latent.qk_rope_head_dim)
        return self.query_parameters + self.projection_parameters + absorbed

    @property
    def retrieval_parameters(self) -> int:
        """Weights of a retrieval head's projections to queries and keys, of one layer with the model's own kind of
        attention (SpeContext 4.3); the embeddings are the model's own."""
        return self.qkv_parameters if self.model.latent else self.query_parameters + self.projection_parameters // 2

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention: Q, K, V and output projections."""
        model = self.model
        out = model.query_heads * model.value_dim * (model.hidden + (model.latent.kv_lora_rank if model.latent else 0))
        return self.qkv_parameters + out

    def ffn_parameters(self, experts: Any) -> Any:
        """Weights of one layer's feed-forward network, in the mean of all layers; of a mixture, those of this many
        experts."""
        model = self.model
        mixture, one = model.experts, 3 * model.hidden
        if mixture is None:
            return one * model.ffn
        mixed = one * mixture.ffn * experts + model.hidden * mixture.routed
        return (mixture.dense_layers * one * model.ffn + (model.layers - mixture.dense_layers) * mixed) / model.layers

    def parameters_read(self, tokens: Any) -> Any:
        """Weights of one layer that are read for this many tokens, a number or an array; in the mean of all layers."""
        experts = self.model.experts.read(tokens) if self.model.experts else 0
        return self.attention_parameters + self.ffn_parameters(experts)

    @property
    def active_parameters(self) -> float:
        """Weights of one layer that one token passes, in the mean of all layers."""
        mixture = self.model.experts
        experts = mixture.shared + mixture.active if mixture else 0
        return float(self.attention_parameters + self.ffn_parameters(experts))

    @property
    def layer_parameters(self) -> float:
        """Weights of one layer, in the mean of all: attention and the gated feed-forward network."""
        mixture = self.model.experts
        experts = mixture.shared + mixture.routed if mixture else 0
        return float(self.attention_parameters + self.ffn_parameters(experts))

    @property
    def mean_row(self) -> float:
        """Weights in a row of the matrices that a new token is multiplied with, in the mean: weights over sums."""
        model, experts = self.model, self.model.experts
        ways: float = 2 * model.ffn + model.hidden
        if experts is not None:
            mixed = (experts.shared + experts.active) * (2 * experts.ffn + model.hidden) + experts.routed
            ways = (experts.dense_layers * ways + (model.layers - experts.dense_layers) * mixed) / model.layers
        sums = model.query_heads * model.head_dim + model.kv_entry_values + model.hidden + ways
        weights = model.layers * self.active_parameters + self.head_parameters
        return weights / (model.layers * sums + model.vocabulary)

    @property
    def head_parameters(self) -> int:
        """Weights of the output head: read once per decoding step."""
        return self.model.vocabulary * self.model.hidden

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embeddings and the output head, which may be one and the same."""
        return self.head_parameters * (1 if self.model.tied_embeddings else 2)

    @property
    def layer_bits(self) -> float:
        """Mean bits of a layer's weights."""
        model = self.model
        if model.weights is None:
            return model.weight_bits
        stored, projected = WEIGHT_FORMATS[model.weights], self.projection_parameters
        attended, layers = model.query_heads * model.value_dim, model.layers
        values = 0 if model.latent else projected // 2  # a latent cache is projected to as a whole
        whole = self.ffn_parameters(model.experts.shared + model.experts.routed if model.experts else 0)
        router = model.hidden * model.experts.routed if model.experts else 0
        down = (whole - router) / 3
        projections = self.attention_parameters - values - model.hidden * attended
        parts = (
            (projections, stored.mean_bits("fused" if model.fused_qkv else "attention", model.hidden, layers)),
            (model.hidden * attended, stored.mean_bits("attention", attended, layers)),
            (values, stored.mean_bits("fused" if model.fused_qkv else "value", model.hidden, layers)),
            (2 * down, stored.mean_bits("ffn", model.hidden, layers)),
            (down, stored.mean_bits("down", model.experts.ffn if model.experts else model.ffn, layers)),
            (router, ROUTER_BITS),
        )
        return sum(parameters * bits for parameters, bits in parts) / sum(parameters for parameters, _ in parts)

    @property
    def head_bits(self) -> float:
        """Bits of the output head's weights."""
        model = self.model
        if model.weights is not None:
            return WEIGHT_FORMATS[model.weights].mean_bits("head", model.hidden, model.layers)
        return model.embedding_bits if model.output_head_bits is None else model.output_head_bits

    @property
    def token_bits(self) -> float:
        """Bits of the token embeddings' weights, which are the output head's where the two are one."""
        model = self.model
        if model.tied_embeddings:
            return self.head_bits
        if model.weights is None:
            return model.embedding_bits
        return WEIGHT_FORMATS[model.weights].mean_bits("embedding", model.hidden, model.layers)
