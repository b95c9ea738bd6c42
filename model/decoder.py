"""A Hugging Face decoder taken apart into what a chunked prefill does with one layer at a time.

Its families differ in norms of queries and keys and in biases only, which their own modules carry; decoder_kinds.py has
those that differ in more.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import rotate_half

from kvferry.model.models import check_config, window_of
from kvferry.specs.errors import InputError, pick

# Cosines and sines of the rotary embedding at some positions, each [1, 1, tokens, head_dim].
Rotary = tuple[torch.Tensor, torch.Tensor]
# What a layer's attention projects the hidden state to: queries, keys or values.
Side = Literal["q", "k", "v"]


class Decoder:
    """Hidden states are [1, tokens, hidden], queries, keys and values [1, heads, tokens, head_dim].

    ``latent_rank``: values are the first numbers of keys, this many, and not kept by themselves; None: they are.
    Raises InputError for a model that cannot be prefilled chunk by chunk.
    """

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3")
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
        # Attention scales by the head's width; the model by this many times that.
        own = self._attention_scale(config)
        self._scale = 1.0 if own is None else own * self.head_dim**0.5

    def token_ids(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Prompts of one length as int64[prompts, tokens]. Raises InputError for ids that the model does not have."""
        # Checked before they go to the device, which would have to be waited for.
        ids = torch.tensor([list(prompt) for prompt in prompts], dtype=torch.long)
        if not ids.numel() or ids.min() < 0 or ids.max() >= self.vocabulary:
            raise InputError(f"token ids must be at least one, and lie in 0..{self.vocabulary - 1}")
        return ids.to(self.device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [1, tokens] to the hidden state below the first layer."""
        return self.model.model.embed_tokens(tokens)

    def rotary(self, tokens: int) -> Rotary:
        """For the positions from 0 to `tokens`. Raises InputError for more than the model's window of attention."""
        window = window_of(self.model.config)
        if window is not None and tokens > window:
            name = self.model.config.name_or_path or self.model.config.model_type
            what = f"some layers attend to a window of the newest {window:,} tokens, and sequences have {tokens:,}"
            raise InputError(f"{name}: {what}: longer ones than the window are not supported")
        positions = torch.arange(tokens, device=self.device)[None]
        cos, sin = self._turns(torch.empty(0, dtype=self.dtype, device=self.device), positions)
        return cos[:, None], sin[:, None]

    def rotary_in(self, l: int, rotary: Rotary) -> Rotary:
        """Returns what layer l takes of ``rotary``, which is of all layers."""
        return rotary

    def keys_values(self, l: int, hidden: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        """What layer l caches of the hidden state below it."""
        entering = self._entering(l, hidden)
        keys = rotated(self._by_head(l, "k", entering), self.rotary_in(l, rotary))
        return keys, self._by_head(l, "v", entering)

    def queries(self, l: int, hidden: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Queries as attention wants them that scales by head_dim ** -0.5."""
        queries = rotated(self._by_head(l, "q", self._entering(l, hidden)), self.rotary_in(l, rotary))
        return queries if self._scale == 1.0 else queries * self._scale

    def above(self, l: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The hidden state above layer l, from the one below it and what its queries attended."""
        out = self._layers[l].self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        hidden = hidden + self._from_attention(l, out)
        return hidden + self._from_feed_forward(l, hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the next token, [..., vocabulary], from the hidden state above the last layer."""
        scores: torch.Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return scores

    # --- what families differ in ---------------------------------------------------------------------------------

    def _attention_scale(self, config: PreTrainedConfig) -> float | None:
        """Returns what the model multiplies products of queries and keys by; None: head_dim ** -0.5."""
        return None

    def _turns(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [1, tokens, head_dim]."""
        cos, sin = self.model.model.rotary_emb(like, position_ids=positions)
        return cos, sin

    def _entering(self, l: int, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the hidden state as a layer's attention reads it."""
        return self._layers[l].input_layernorm(hidden)

    def _by_head(self, l: int, side: Side, entering: torch.Tensor) -> torch.Tensor:
        heads = self._projected(l, side, entering).unflatten(-1, (-1, self.head_dim))
        norm = getattr(self._layers[l].self_attn, f"{side}_norm", None)
        return (norm(heads) if norm is not None else heads).transpose(1, 2)

    def _projected(self, l: int, side: Side, entering: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = getattr(self._layers[l].self_attn, f"{side}_proj")(entering)
        return projected

    def _from_attention(self, l: int, out: torch.Tensor) -> torch.Tensor:
        """Returns what is added to the hidden state, of the attention's output."""
        return out

    def _from_feed_forward(self, l: int, hidden: torch.Tensor) -> torch.Tensor:
        """Returns what is then added to the hidden state."""
        return self._layers[l].mlp(self._layers[l].post_attention_layernorm(hidden))


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
