"""A layer for whole prompts at once, as a local prefill does it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from kvferry.model.decoder import Decoder, Rotary

# What a feed-forward network makes of a token is several times as wide as the token: it reads so many at a time, and
# prompts of any length need little memory beside their KV.
_TOGETHER = 4096


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
    each = max(1, _TOGETHER // len(hidden))
    pieces = zip(hidden.split(each, 1), attended.split(each, 2), strict=True)
    above = torch.cat([decoder.above(layer, below, seen) for below, seen in pieces], 1)
    return PrefilledLayer(above, queries, keys, values)
