"""A layer for whole prompts at once, as a local prefill does it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from kvferry.model.decoder import Decoder, Rotary


class PrefilledLayer(NamedTuple):
    """What prompts leave in a layer: the hidden state [sequences, tokens, hidden] above it, queries [sequences, query
    heads, tokens, head_dim], and what it caches: keys and values, each [sequences, KV heads, tokens, head_dim]."""

    hidden: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def prefill_layer(decoder: Decoder, layer: int, hidden: torch.Tensor, rotary: Rotary) -> PrefilledLayer:
    """Runs a layer on the hidden state [sequences, tokens, hidden] below it."""
    keys, values = decoder.keys_values(layer, hidden, rotary)
    queries = decoder.queries(layer, hidden, rotary)
    attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return PrefilledLayer(decoder.above(layer, hidden, attended), queries, keys, values)
