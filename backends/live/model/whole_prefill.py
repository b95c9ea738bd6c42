"""A layer for whole prompts at once, as a local prefill does it."""

import torch
import torch.nn.functional as F

from kvferry.backends.live.model.decoder import Decoder, Rotary


def prefill_layer(
    decoder: Decoder, layer: int, hidden: torch.Tensor, rotary: Rotary
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The hidden state [sequences, tokens, hidden] above a layer, from the one below, and what the layer caches: keys
    and values, each [sequences, KV heads, tokens, head_dim]."""
    keys, values = decoder.keys_values(layer, hidden, rotary)
    queries = decoder.queries(layer, hidden, rotary)
    attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return decoder.above(layer, hidden, attended), keys, values
