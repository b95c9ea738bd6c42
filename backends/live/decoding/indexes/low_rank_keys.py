"""KVSwap's index: keys of all heads side by side, at a low rank (KVSwap 3.2, 3.3)."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.index import BlockIndex, by_kv_head, principal_directions, sampled
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec


def low_rank_adapters(decoder: Decoder, sample: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns float[layers, KV heads, head_dim, rank]: what keys of all heads, side by side, are projected with.

    The top right singular vectors of the keys that `sample` [sequences, tokens], token ids of any text, leaves in each
    layer. They are made offline: other texts' keys do as well."""
    adapters = []
    for layer in sampled(decoder, sample):
        side_by_side = layer.keys.transpose(1, 2).flatten(2).flatten(0, 1)
        top = principal_directions(side_by_side)[:, :rank]
        adapters.append(top.unflatten(0, (decoder.heads, decoder.head_dim)).to(decoder.dtype))
    return torch.stack(adapters)


class LowRankKeys(BlockIndex):
    """Keys [layers, sequences, tokens, rank]; `adapters` are those of ``low_rank_adapters``.

    A token's score is the product of its compressed key with the compressed query, summed over query heads as Section
    3.3 has it; a KV block has that of its best token.
    """

    def __init__(self, adapters: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> None:
        layers, _, head_dim, rank = adapters.shape
        super().__init__(spec, layers=layers, head_dim=head_dim, room_tokens=room_tokens)
        self.adapters = adapters
        like = {"dtype": adapters.dtype, "device": adapters.device}
        self._keys = torch.zeros((layers, sequences, self.room_tokens, rank), **like)

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        adapters = low_rank_adapters(decoder, sample, spec.rank)
        return cls(adapters, spec, sequences=sequences, room_tokens=room_tokens)

    @property
    def n_bytes(self) -> int:
        return self._keys.nbytes

    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        begin = block * self.spec.block_tokens
        end = begin + keys.shape[2]
        self._keys[layer, :, begin:end] = torch.einsum("bhtd,hdr->btr", keys, self.adapters[layer])

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        low = torch.einsum("bkqd,kdr->bkqr", by_kv_head(queries, self.adapters.shape[1]), self.adapters[layer])
        # Small products of 16-bit numbers are slow on CPUs.
        low, keys = (
            low.flatten(1, 2).float(),
            self._keys[layer, :, : self.blocks(layer) * self.spec.block_tokens].float(),
        )
        if self.spec.scores == "summed":
            # The sum over heads of products with the same keys is the product with the sum.
            scores = torch.einsum("bcr,btr->bct", low.unflatten(1, (heads, -1)).sum(2), keys)
        else:
            scores = self._agreed(torch.einsum("bqr,btr->bqt", low, keys), heads)
        return self._best_token(scores)
