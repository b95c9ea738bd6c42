"""Keys of every KV head, projected to a few numbers: what the indexes of InfiniGen and Loki share."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.index import BlockIndex, by_kv_head, principal_directions, sampled
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec


class ProjectedKeys(BlockIndex):
    """Keys [layers, sequences, KV heads, tokens, numbers of a head].

    ``projections`` [layers, KV heads, head_dim, numbers of a head] are what a KV head's keys, and the queries of its
    query heads, are multiplied with. A KV block has the score of its best token.
    """

    def __init__(self, projections: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> None:
        layers, kv_heads, head_dim, numbers = projections.shape
        super().__init__(spec, layers=layers, head_dim=head_dim, room_tokens=room_tokens)
        self.projections = projections
        like = {"dtype": projections.dtype, "device": projections.device}
        self._keys = torch.zeros((layers, sequences, kv_heads, self.room_tokens, numbers), **like)

    @property
    def n_bytes(self) -> int:
        return self._keys.nbytes

    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        begin = block * self.spec.block_tokens
        self._keys[layer, :, :, begin : begin + keys.shape[2]] = keys @ self.projections[layer]

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        projections = self.projections[layer]
        few = by_kv_head(queries, len(projections)) @ projections
        keys = self._keys[layer, :, :, : self.blocks(layer) * self.spec.block_tokens]
        # Small products of 16-bit numbers are slow on CPUs.
        by_query_head = (few.float() @ keys.float().mT).flatten(1, 2)
        return self._best_token(self._agreed(by_query_head, heads))


def principal_components(decoder: Decoder, sample: torch.Tensor, numbers: int) -> torch.Tensor:
    """Returns float[layers, KV heads, head_dim, numbers]: the first principal components of each head's keys in a
    sample.

    They are directions about the mean key. Keys are projected without taking the mean off: what it adds to a score is
    the same for every token."""
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


def skewing_matrices(decoder: Decoder, sample: torch.Tensor) -> torch.Tensor:
    """Returns float[layers, KV heads, head_dim, head_dim]: orthogonal matrices that gather a head's queries in few
    columns.

    The right singular vectors of the queries that a sample leaves; query heads that share a KV head share one, as they
    share its keys. Multiplying queries and keys with the same orthogonal matrix leaves their products as they are."""
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


def numbers_of_a_head(spec: IndexSpec, decoder_heads: int, head_dim: int) -> int:
    """Returns the numbers that each KV head has of the rank over all of them: at least 1, at most all."""
    return max(1, min(spec.rank // decoder_heads, head_dim))
