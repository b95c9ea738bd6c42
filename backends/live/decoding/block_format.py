"""The content of a storage file of KV: KV blocks as the layout has them, from tensors to bytes and back."""

from collections.abc import Sequence

import numpy as np
import torch

from kvferry.layouts.layout import Layout
from kvferry.specs.errors import InputError
from kvferry.system.aligned_memory import aligned_memory


class BlockFormat:
    """A KV block is [sides, heads, tokens, head_dim] in the model's own numbers, then zeros up to its stride.

    Its sides are keys and values, or with `values_only` values alone. With a `latent_rank` it is keys alone, whose
    first numbers are the values. A row of the layout is a sequence with all its KV
    heads, or one head of it. Raises InputError for a layout whose KV blocks have another size.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        group_tokens: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        values_only: bool = False,
        latent_rank: int | None = None,
    ) -> None:
        self.layout, self.dtype, self.values_only, self._latent_rank = layout, dtype, values_only, latent_rank
        self.group_tokens, self.kv_heads, self.head_dim = group_tokens, kv_heads, head_dim
        if kv_heads % layout.heads:
            raise InputError(f"a layout for {layout.heads} heads cannot hold {kv_heads} KV heads")
        self.shape = (1 if values_only else self.sides, kv_heads // layout.heads, group_tokens, head_dim)
        n_bytes = int(np.prod(self.shape)) * dtype.itemsize
        if n_bytes != layout.block_bytes:
            raise InputError(
                f"a group of {group_tokens} tokens in {_name(dtype)} takes {n_bytes} bytes per row, the layout has"
                f" {layout.block_bytes}; is the model's kv_value_bytes that of its dtype?"
            )

    @property
    def rows(self) -> int:
        return self.layout.sequences * self.layout.heads

    @property
    def sides(self) -> int:
        """Returns the sides of what is in memory: keys and values, or keys that have the values in them."""
        return 2 if self._latent_rank is None else 1

    def kept(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the sides of keys and values."""
        return (keys, values)[: self.sides]

    def keys_values(self, kept: Sequence[torch.Tensor] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values of their sides."""
        return kept[0], kept[1] if self._latent_rank is None else kept[0][..., : self._latent_rank]

    def blocks(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Returns KV of whole KV blocks, each [sequences, KV heads, tokens, head_dim], as blocks [rows, blocks,
        *shape]."""
        sides = torch.stack([values] if self.values_only else self.kept(keys, values))
        _, heads, tokens, _ = self.shape
        by_row = sides.unflatten(2, (-1, heads)).flatten(1, 2).unflatten(3, (-1, tokens))  # sides rows heads blocks
        return by_row.permute(1, 3, 0, 2, 4, 5)

    def packed(self, layers: Sequence[torch.Tensor]) -> memoryview:
        """Returns KV blocks [rows, blocks, *shape] of each layer as they lie in the file, stretch after stretch; in
        memory that direct I/O takes as it is."""
        rows, blocks = layers[0].shape[:2]
        whole = aligned_memory(len(layers) * rows * blocks * self.layout.stride_bytes)
        there = np.frombuffer(whole, np.uint8).reshape(len(layers), rows, blocks, self.layout.stride_bytes)
        for into, of_layer in zip(there, layers, strict=True):
            into[..., : self.layout.block_bytes] = raw_bytes(of_layer)
        return whole

    def packed_there(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the same as uint8[n] in the memory that the KV blocks are in."""
        shape = (len(layers), *layers[0].shape[:2], self.layout.stride_bytes)
        whole = torch.zeros(shape, dtype=torch.uint8, device=layers[0].device)
        for into, of_layer in zip(whole, layers, strict=True):
            into[..., : self.layout.block_bytes] = of_layer.contiguous().flatten(2).view(torch.uint8)
        return whole.flatten()

    def unpacked(self, read: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Returns bytes uint8[n, m x stride] as they were read, as KV blocks [n x m, *shape]: a view where they lie
        well."""
        by_block = read.reshape(-1, self.layout.stride_bytes)[:, : self.layout.block_bytes]
        if isinstance(by_block, torch.Tensor):
            return by_block.contiguous().view(self.dtype).unflatten(1, self.shape)
        flat = torch.from_numpy(by_block if by_block.flags.writeable else by_block.copy())
        return flat.view(self.dtype).unflatten(1, self.shape)

    def side_by_side(self, blocks: torch.Tensor) -> torch.Tensor:
        """Returns KV blocks [rows, blocks, *shape] as [sides, sequences, KV heads, tokens, head_dim]."""
        by_sequence = blocks.unflatten(0, (self.layout.sequences, self.layout.heads))
        # sequences, heads, blocks, sides, heads of a row, tokens, head_dim
        return by_sequence.permute(3, 0, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)


def raw_bytes(tensor: torch.Tensor) -> np.ndarray:
    """Returns uint8[n, m, bytes] of [n, m, *shape]."""
    return np.asarray(tensor.to("cpu").contiguous().flatten(2).view(torch.uint8).numpy())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
