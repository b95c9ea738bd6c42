"""Clusters of entries, as tensors and as they lie in the file."""

from collections.abc import Iterator

import numpy as np
import torch

from kvferry.backends.live.decoding.cluster_members import Place
from kvferry.backends.live.decoding.written import Bytes
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.layouts.pieces import Pieces
from kvferry.specs.errors import InputError


class ClusterFormat:
    """A KV block is as many entries as it has tokens, each [sides, heads of a row, head_dim] in the model's own
    numbers; so a token more is written behind the others. Raises InputError for a layout whose tokens have another
    size."""

    def __init__(self, layout: ClusterLayout, *, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.layout, self.kv_heads, self.head_dim, self.dtype = layout, kv_heads, head_dim, dtype
        self.shape = (2, kv_heads // layout.heads, head_dim)
        n_bytes = int(np.prod(self.shape)) * dtype.itemsize
        if n_bytes != layout.token_bytes:
            raise InputError(
                f"a token in {str(dtype).removeprefix('torch.')} takes {n_bytes} bytes per row, the layout has"
                f" {layout.token_bytes}; is the model's kv_value_bytes that of its dtype?"
            )

    def entries(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Returns [rows, tokens, *shape] of keys and values [sequences, KV heads, tokens, head_dim]."""
        sides = torch.stack([keys, values]).unflatten(2, (self.layout.heads, -1))
        return sides.permute(1, 2, 4, 0, 3, 5).flatten(0, 1)

    def packed(self, entries: torch.Tensor, down: bool) -> Bytes:
        """Returns entries [tokens, *shape] as they lie in the file."""
        in_file = entries.flip(0) if down else entries
        return in_file.to("cpu").contiguous().flatten().view(torch.uint8).numpy().tobytes()

    def unpacked(self, read: Bytes, down: bool) -> torch.Tensor:
        entries = torch.frombuffer(bytearray(read), dtype=self.dtype).view(-1, *self.shape)
        return entries.flip(0) if down else entries


def stretches_of(pieces: Pieces) -> Iterator[tuple[Place, int, int, bool]]:
    """Returns place, first entry, entries and direction of each piece."""
    columns = (pieces.rows, pieces.blocks, pieces.firsts, pieces.tokens, pieces.down)
    for row, block, first, tokens, down in zip(*(column.tolist() for column in columns), strict=True):
        yield (row, block), first, tokens, down


def numbers_of(entries: torch.Tensor) -> np.ndarray:
    """Returns float32[..., numbers]: keys of entries [..., sides, heads of a row, head_dim]."""
    return np.asarray(entries.select(-3, 0).flatten(-2).float().cpu().numpy())
