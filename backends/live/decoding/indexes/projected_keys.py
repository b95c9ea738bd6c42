"""Keys of every KV head, projected to a few numbers: what the indexes of InfiniGen and Loki share."""

import torch

from kvferry.backends.live.decoding.indexes.index import BlockIndex, by_kv_head
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


def numbers_of_a_head(spec: IndexSpec, decoder_heads: int, head_dim: int) -> int:
    """Numbers that each KV head has of the rank over all of them: at least 1, at most all."""
    return max(1, min(spec.rank // decoder_heads, head_dim))
