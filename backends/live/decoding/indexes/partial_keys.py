"""InfiniGen's index: a few columns of skewed queries and keys (arXiv 2406.19707, Sections 4.2 and 4.3)."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.index import principal_directions, sampled
from kvferry.backends.live.decoding.indexes.projected_keys import ProjectedKeys, numbers_of_a_head
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec


def skewing_matrices(decoder: Decoder, sample: torch.Tensor) -> torch.Tensor:
    """float[layers, KV heads, head_dim, head_dim]: orthogonal matrices that gather a head's queries in few columns.

    The right singular vectors of the queries that a sample leaves; query heads that share a KV head share one, as they
    share its keys. Multiplying queries and keys with the same orthogonal matrix leaves their products as they are.
    """
    skewing = []
    for layer in sampled(decoder, sample):
        by_kv_head = layer.queries.unflatten(1, (decoder.heads, -1)).transpose(0, 1).flatten(1, 3)
        skewing.append(principal_directions(by_kv_head).to(decoder.dtype))
    return torch.stack(skewing)


class PartialKeys(ProjectedKeys):
    """Products of the columns of skewed queries and keys whose magnitudes are largest over the prompts.

    The columns are chosen for every batch of prompts, when a layer is prefilled: the ones with the largest sum of
    absolute values of the batch's skewed queries and keys.
    """

    def __init__(
        self, skewing: torch.Tensor, numbers: int, spec: IndexSpec, *, sequences: int, room_tokens: int
    ) -> None:
        # Until the prompts are known, the columns that were strongest in the sample.
        super().__init__(skewing[..., :numbers].clone(), spec, sequences=sequences, room_tokens=room_tokens)
        self.skewing = skewing

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        numbers = numbers_of_a_head(spec, decoder.heads, decoder.head_dim)
        return cls(skewing_matrices(decoder, sample), numbers, spec, sequences=sequences, room_tokens=room_tokens)

    def prefill(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        skewing = self.skewing[layer]
        by_kv_head = queries.unflatten(1, (len(skewing), -1)).flatten(2, 3)
        # Sums of thousands of 16-bit numbers.
        magnitudes = sum((each @ skewing).abs().sum((0, 2), dtype=torch.float32) for each in (by_kv_head, keys))
        assert isinstance(magnitudes, torch.Tensor)
        numbers = self.projections.shape[-1]
        columns = magnitudes.topk(numbers, dim=-1).indices[:, None].expand(-1, skewing.shape[1], -1)
        self.projections[layer] = skewing.gather(2, columns)
        self.append(layer, keys)
