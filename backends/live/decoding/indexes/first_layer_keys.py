"""The first layer's own keys, by which all layers' KV blocks are chosen before a pass."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.projected_keys import ProjectedKeys
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec


class FirstLayerKeys(ProjectedKeys):
    """A KV block's score is that of its best token with the first layer's query of the new token, which is known before
    the pass. It stands where SpeContext's retrieval head will: nothing is trained, and what later layers attend to
    may differ."""

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        """The sample is not needed."""
        whole = torch.eye(decoder.head_dim, dtype=decoder.dtype, device=decoder.device)
        return cls(whole.expand(1, decoder.heads, -1, -1), spec, sequences=sequences, room_tokens=room_tokens)

    def blocks(self, layer: int) -> int:
        return super().blocks(0)

    def append(self, layer: int, keys: torch.Tensor) -> None:
        if layer == 0:
            super().append(layer, keys)
