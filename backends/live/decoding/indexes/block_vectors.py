"""A few vectors per KV block and KV head, made from its keys: what the indexes of ShadowKV and Quest share."""

from abc import abstractmethod
from typing import ClassVar, Self

import torch

from kvferry.backends.live.decoding.indexes.index import BlockIndex, by_kv_head
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec


class BlockVectors(BlockIndex):
    """Vectors [layers, ``per_block``, sequences, KV heads, blocks, head_dim]."""

    per_block: ClassVar[int]

    def __init__(
        self,
        spec: IndexSpec,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        sequences: int,
        room_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(spec, layers=layers, head_dim=head_dim, room_tokens=room_tokens)
        shape = (layers, self.per_block, sequences, kv_heads, self.room_blocks, head_dim)
        self._vectors = torch.zeros(shape, dtype=dtype, device=device)

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        """The sample is not needed."""
        return cls(
            spec,
            layers=decoder.layers,
            kv_heads=decoder.heads,
            head_dim=decoder.head_dim,
            sequences=sequences,
            room_tokens=room_tokens,
            dtype=decoder.dtype,
            device=decoder.device,
        )

    @property
    def n_bytes(self) -> int:
        return self._vectors.nbytes

    def vectors(self, layer: int) -> torch.Tensor:
        """Returns float32[per_block, sequences, KV heads, blocks, head_dim] of what has come so far."""
        # Small products of 16-bit numbers are slow on CPUs.
        return self._vectors[layer, :, :, :, : self.blocks(layer)].float()

    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        made = self._of_blocks(keys.unflatten(2, (-1, self.spec.block_tokens)))
        self._vectors[layer, :, :, :, block : block + made.shape[3]] = made

    @abstractmethod
    def _of_blocks(self, keys: torch.Tensor) -> torch.Tensor:
        """Vectors [per_block, sequences, KV heads, blocks, head_dim] of keys [..., blocks, tokens, head_dim]."""


class Landmarks(BlockVectors):
    """A KV block's score is the query's product with the mean of its keys.

    Left out: ShadowKV's few outlier blocks, whose KV stays in memory.
    """

    per_block = 1

    def _of_blocks(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.mean(3)[None]

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        means = self.vectors(layer)[0]
        scores = by_kv_head(queries, means.shape[1]).float() @ means.mT
        return self._agreed(scores.flatten(1, 2), heads)


class PageBounds(BlockVectors):
    """A KV block's score is the most that the query's product with any key between the bounds can be, and thus never
    less than that with a key of the block."""

    per_block = 2

    def _of_blocks(self, keys: torch.Tensor) -> torch.Tensor:
        return torch.stack((keys.amin(3), keys.amax(3)))

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        least, largest = self.vectors(layer)
        by_head = by_kv_head(queries, least.shape[1]).float()
        # A negative number of the query makes most of the least number of a key.
        bounds = by_head.clamp(min=0) @ largest.mT + by_head.clamp(max=0) @ least.mT
        return self._agreed(bounds.flatten(1, 2), heads)
