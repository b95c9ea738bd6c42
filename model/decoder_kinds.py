"""Decoders of families that differ from Llama in more than norms of queries and keys."""

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

from kvferry.model.decoder import Decoder, Rotary, Side


class FusedDecoder(Decoder):
    """Phi-3: one projection makes queries, keys and values, side by side."""

    families = ("phi3",)

    def _projected(self, l: int, side: Side, entering: torch.Tensor) -> torch.Tensor:
        fused, keys = self._layers[l].self_attn.qkv_proj, self.heads * self.head_dim
        queries = fused.out_features - 2 * keys
        begin, end = {"q": (0, queries), "k": (queries, queries + keys), "v": (queries + keys, queries + 2 * keys)}[
            side
        ]
        return F.linear(entering, fused.weight[begin:end])


class PartlyTurningDecoder(Decoder):
    """SmolLM3: some layers have no rotary embedding."""

    families = ("smollm3",)

    def rotary_in(self, l: int, rotary: Rotary) -> Rotary:
        if self._layers[l].self_attn.use_rope:
            return rotary
        cos, sin = rotary
        return torch.ones_like(cos), torch.zeros_like(sin)


class MultipliedDecoder(Decoder):
    """Granite: embeddings, attention, what layers add and logits have multipliers of their own."""

    families = ("granite",)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().embed(tokens) * self.model.config.embedding_multiplier

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().logits(hidden) / self.model.config.logits_scaling

    def _attention_scale(self, config: PreTrainedConfig) -> float:
        return float(config.attention_multiplier)

    def _from_attention(self, l: int, out: torch.Tensor) -> torch.Tensor:
        return out * self.model.config.residual_multiplier

    def _from_feed_forward(self, l: int, hidden: torch.Tensor) -> torch.Tensor:
        return super()._from_feed_forward(l, hidden) * self.model.config.residual_multiplier


class NormedBehindDecoder(Decoder):
    """OLMo 2: norms stand behind attention and network instead of before them, and over all heads of queries or keys
    together."""

    families = ("olmo2",)

    def _entering(self, l: int, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def _by_head(self, l: int, side: Side, entering: torch.Tensor) -> torch.Tensor:
        projected, norm = self._projected(l, side, entering), getattr(self._layers[l].self_attn, f"{side}_norm", None)
        normed = projected if norm is None else norm(projected)
        return normed.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _from_attention(self, l: int, out: torch.Tensor) -> torch.Tensor:
        return self._layers[l].post_attention_layernorm(out)

    def _from_feed_forward(self, l: int, hidden: torch.Tensor) -> torch.Tensor:
        return self._layers[l].post_feedforward_layernorm(self._layers[l].mlp(hidden))


class WindowedDecoder(Decoder):
    """Gemma 3: norms before and behind, attention scaled by a number of its own, a rotary embedding for layers with a
    window of attention and another for the others, and logits that are capped."""

    families = ("gemma3_text",)

    def rotary_in(self, l: int, rotary: Rotary) -> Rotary:
        kinds = self._kinds
        cos, sin = (side.unflatten(-1, (len(kinds), -1)) for side in rotary)
        n = kinds.index(self.model.config.layer_types[l])
        return cos[..., n, :], sin[..., n, :]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        scores, cap = super().logits(hidden), self.model.config.final_logit_softcapping
        return scores if cap is None else torch.tanh(scores / cap) * cap

    @property
    def _kinds(self) -> list[str]:
        return sorted(set(self.model.config.layer_types))

    def _turns(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every kind of layer, side by side."""
        pairs = [self.model.model.rotary_emb(like, positions, kind) for kind in self._kinds]
        cos, sin = (torch.cat(sides, -1) for sides in zip(*pairs, strict=True))
        return cos, sin

    def _attention_scale(self, config: PreTrainedConfig) -> float:
        return float(config.query_pre_attn_scalar) ** -0.5

    def _from_attention(self, l: int, out: torch.Tensor) -> torch.Tensor:
        return self._layers[l].post_attention_layernorm(out)

    def _from_feed_forward(self, l: int, hidden: torch.Tensor) -> torch.Tensor:
        layer = self._layers[l]
        return layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(hidden)))
