"""What a model has instead of keys and values of every head, or of one feed-forward network."""

from typing import Any

from pydantic import Field

from kvferry.specs.base import Spec
from kvferry.specs.units import Count


class LatentKv(Spec):
    """Multi-head latent attention (DeepSeek-V2, Section 2.1), with the names of Hugging Face's ``config.json``.

    Of each token and layer it caches a latent vector of ``kv_lora_rank`` numbers, from which the keys and values of all
    heads are made, and a key of ``qk_rope_head_dim`` numbers with the rotary embedding, which all heads share.
    ``v_head_dim``: numbers of a head's value. ``q_lora_rank``: numbers that queries are made from; None: from the
    hidden state itself.
    """

    kv_lora_rank: Count = Field(ge=1, le=10**5)
    qk_rope_head_dim: Count = Field(ge=1, le=10**5)
    v_head_dim: Count = Field(ge=1, le=10**5)
    q_lora_rank: Count | None = Field(default=None, ge=1, le=10**5)

    @property
    def width(self) -> int:
        """Numbers that one token and layer cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class Experts(Spec):
    """A mixture of experts (DeepSeekMoE) instead of the feed-forward network, in all layers but the first
    ``dense_layers``: each token passes ``shared`` experts and ``active`` of ``routed`` ones, of ``ffn`` numbers each.
    """

    routed: Count = Field(ge=1, le=10**4)
    active: Count = Field(ge=1, le=10**4)
    shared: Count = Field(default=0, ge=0, le=10**4)
    ffn: Count = Field(ge=1, le=10**7)
    dense_layers: Count = Field(default=0, ge=0, le=1000)

    def read(self, tokens: Any) -> Any:
        """Experts whose weights are read for so many tokens, a number or an array: they choose evenly, each for
        itself."""
        return self.shared + self.routed * (1 - (1 - self.active / self.routed) ** tokens)
