"""Multi-head latent attention (DeepSeek-V2, Section 2.1) as a decoder: what is cached is one vector for all heads."""

import torch
from transformers import PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

from kvferry.model.decoder import Decoder, Rotary, rotated


class LatentDecoder(Decoder):
    """One KV head. Its key is a token's latent vector with the rotary key behind it, its value the latent vector alone:
    queries are taken to that space, and what they attend to is brought up to values of heads (absorbed matrices,
    2.1.2). It is the model's own attention, multiplied in another order.
    """

    families = ("deepseek_v3",)

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        config = model.config
        self.latent_rank = config.kv_lora_rank
        self.heads, self.head_dim = 1, config.kv_lora_rank + config.qk_rope_head_dim
        self._query_heads, self._interleaved = config.num_attention_heads, bool(config.rope_interleave)
        self._of_query = (config.qk_nope_head_dim, config.qk_rope_head_dim)
        own_scale = yarn_apply_mscale(config.rope_parameters, config.qk_head_dim**-0.5)
        # Attention scales by the width of these keys; the model by that of the keys that it makes of them.
        self._scale = own_scale * self.head_dim**0.5

    def keys_values(self, l: int, hidden: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        attention = self._layers[l].self_attn
        cached = attention.kv_a_proj_with_mqa(self._layers[l].input_layernorm(hidden))
        latent, shared = cached.split([self.latent_rank, self._of_query[1]], dim=-1)
        latent = attention.kv_a_layernorm(latent)
        keys = torch.cat([latent, self._turned(shared[:, None], rotary)[:, 0]], dim=-1)
        return keys[:, None], latent[:, None]

    def queries(self, l: int, hidden: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        attention = self._layers[l].self_attn
        normed = self._layers[l].input_layernorm(hidden)
        if attention.q_lora_rank is None:
            projected = attention.q_proj(normed)
        else:
            projected = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(normed)))
        by_head = projected.unflatten(-1, (self._query_heads, -1)).transpose(1, 2)
        plain, turning = by_head.split(self._of_query, dim=-1)
        absorbed = plain @ self._brought_up(l)[:, : self._of_query[0]]
        return torch.cat([absorbed, self._turned(turning, rotary)], dim=-1) * self._scale

    def above(self, l: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return super().above(l, hidden, attended @ self._brought_up(l)[:, self._of_query[0] :].mT)

    def _brought_up(self, l: int) -> torch.Tensor:
        """Weights [query heads, numbers of a key without the rotary ones and of a value, latent rank]."""
        weight: torch.Tensor = self._layers[l].self_attn.kv_b_proj.weight
        return weight.unflatten(0, (self._query_heads, -1))

    def _turned(self, heads: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """With the rotary embedding, whose pairs the model may have side by side."""
        if self._interleaved:
            heads = heads.unflatten(-1, (-1, 2)).mT.flatten(-2)
        return rotated(heads, rotary)
