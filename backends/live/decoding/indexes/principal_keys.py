"""Loki's index: the leading principal components of every head's keys (arXiv 2406.02542, Section 4)."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.index import principal_directions, sampled
from kvferry.backends.live.decoding.indexes.projected_keys import ProjectedKeys, numbers_of_a_head
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec


def principal_components(decoder: Decoder, sample: torch.Tensor, numbers: int) -> torch.Tensor:
    """float[layers, KV heads, head_dim, numbers]: the first principal components of each head's keys in a sample.

    They are directions about the mean key. Keys are projected without taking the mean off: what it adds to a score is
    the same for every token.
    """
    components = []
    for layer in sampled(decoder, sample):
        by_head = layer.keys.transpose(0, 1).flatten(1, 2)  # KV heads, tokens, head_dim
        centred = by_head - by_head.mean(1, keepdim=True)
        components.append(principal_directions(centred)[..., :numbers].to(decoder.dtype))
    return torch.stack(components)


class PrincipalKeys(ProjectedKeys):
    """Scores are products in the principal components that explain most of a head's keys, calibrated offline."""

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        numbers = numbers_of_a_head(spec, decoder.heads, decoder.head_dim)
        components = principal_components(decoder, sample, numbers)
        return cls(components, spec, sequences=sequences, room_tokens=room_tokens)
