"""An index over arrays, as it is for real: the model's keys and queries are handed to it as numpy arrays."""

from typing import Self

import numpy as np
import torch

from kvferry.backends.live.decoding.indexes.index import BlockIndex
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.key_index import KEY_INDEXES, IndexShape, KeyIndex


class ArrayIndex(BlockIndex):
    """Wraps a KeyIndex. Tensors of a CPU in single precision are not copied for it; others are."""

    def __init__(self, index: KeyIndex, spec: IndexSpec, device: torch.device | str = "cpu") -> None:
        shape = index.shape
        room_tokens = shape.room_blocks * shape.block_tokens
        super().__init__(spec, layers=shape.layers, head_dim=shape.head_dim, room_tokens=room_tokens)
        self._index, self._device = index, device

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        """The sample is not needed."""
        shape = IndexShape(
            layers=decoder.layers,
            sequences=sequences,
            heads=spec.heads,
            kv_heads=decoder.heads,
            query_heads=decoder.model.config.num_attention_heads,
            head_dim=decoder.head_dim,
            block_tokens=spec.block_tokens,
            room_blocks=room_tokens // spec.block_tokens,
        )
        return cls(KEY_INDEXES[spec.kind](shape, **dict(spec.parameters)), spec, decoder.device)

    def clear(self) -> None:
        super().clear()
        self._index = KEY_INDEXES[self.spec.kind](self._index.shape, **dict(self.spec.parameters))

    @property
    def n_bytes(self) -> int:
        return self._index.n_bytes

    def attended(self, layer: int, ids: np.ndarray, queries: torch.Tensor, keys: torch.Tensor) -> None:
        if not self._index.attends:
            return
        shape, tokens = self._index.shape, ids.shape[-1] * self.spec.block_tokens
        shares = (queries @ keys.mT * self._scale).float().softmax(-1)[..., :tokens]
        by_block = shares.unflatten(-1, (-1, self.spec.block_tokens)).sum(-1)
        by_part = by_block.flatten(1, 2).unflatten(1, (shape.heads, -1)).sum(2)
        self._index.attended(layer, ids.reshape(shape.sequences, shape.heads, -1), _array(by_part))

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        found = self._index.chosen_scores(layer, _array(queries[:, :, 0]), self.blocks(layer), self.spec)
        return torch.from_numpy(found.astype(np.float32, copy=False)).to(self._device)

    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        self._index.keep(layer, block, _array(keys))


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().float().cpu().numpy()
    return array
