"""A Hugging Face decoder taken apart into what a chunked prefill does with one layer at a time.

The three families differ in norms of queries and keys and in biases only, which their own modules carry.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import rotate_half

from kvferry.model.models import check_config
from kvferry.specs.errors import InputError, pick

# Cosines and sines of the rotary embedding at some positions, each [1, 1, tokens, head_dim].
Rotary = tuple[torch.Tensor, torch.Tensor]


class Decoder:
    """Hidden states are [1, tokens, hidden], queries, keys and values [1, heads, tokens, head_dim].

    ``latent_rank``: values are the first numbers of keys, this many, and not kept by themselves; None: they are.
    Raises InputError for a model that cannot be prefilled chunk by chunk.
    """

    families: ClassVar[tuple[str, ...]] = ("llama", "qwen2", "qwen3")
    latent_rank: int | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        pick("model family", dict.fromkeys(self.families), model.config.model_type)
        check_config(model.config, model.config.name_or_path or model.config.model_type)
        self.model = model
        self.dtype, self.device = model.dtype, model.device
        config = model.config
        self.layers = config.num_hidden_layers
        self.heads = config.num_key_value_heads
        self.vocabulary = config.vocab_size
        # A latent cache has no heads of its own.
        self.head_dim: int = getattr(model.model.layers[0].self_attn, "head_dim", 0)
        self._layers = model.model.layers

    def token_ids(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Prompts of one length as int64[prompts, tokens]. Raises InputError for ids that the model does not have."""
        ids = torch.tensor([list(prompt) for prompt in prompts], dtype=torch.long, device=self.device)
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise InputError(f"token ids must lie in 0..{self.vocabulary - 1}")
        return ids

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [1, tokens] to the hidden state below the first layer."""
        return self.model.model.embed_tokens(tokens)

    def rotary(self, tokens: int) -> Rotary:
        """For the positions from 0 to `tokens`."""
        positions = torch.arange(tokens, device=self.device)[None]
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        cos, sin = self.model.model.rotary_emb(like, position_ids=positions)
        return cos[:, None], sin[:, None]

    def keys_values(self, l: int, hidden: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        """What layer l caches of the hidden state below it."""
        attention = self._layers[l].self_attn
        normed = self._layers[l].input_layernorm(hidden)
        keys = self._heads(attention.k_proj(normed), getattr(attention, "k_norm", None))
        return rotated(keys, rotary), self._heads(attention.v_proj(normed))

    def queries(self, l: int, hidden: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        attention = self._layers[l].self_attn
        normed = self._layers[l].input_layernorm(hidden)
        return rotated(self._heads(attention.q_proj(normed), getattr(attention, "q_norm", None)), rotary)

    def above(self, l: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The hidden state above layer l, from the one below it and what its queries attended."""
        layer = self._layers[l]
        hidden = hidden + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the next token, [..., vocabulary], from the hidden state above the last layer."""
        scores: torch.Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return scores

    def _heads(self, projected: torch.Tensor, norm: torch.nn.Module | None = None) -> torch.Tensor:
        by_head = projected.unflatten(-1, (-1, self.head_dim))
        return (norm(by_head) if norm is not None else by_head).transpose(1, 2)


def rotated(heads: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Queries or keys [..., tokens, head_dim] with their rotary embedding; of wider ones, the last numbers have it."""
    cos, sin = rotary
    plain, turning = heads.split([heads.shape[-1] - cos.shape[-1], cos.shape[-1]], dim=-1)
    turned = turning * cos + rotate_half(turning) * sin
    return torch.cat([plain, turned], dim=-1) if plain.shape[-1] else turned


def unrotated(heads: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Undoes ``rotated``."""
    cos, sin = rotary
    # Some models scale cosines and sines.
    return rotated(heads, (cos, -sin)) / (cos**2 + sin**2)
