"""What a storage file of KV holds: units of tensors as the layout has them, to bytes and back."""

from collections.abc import Sequence

import numpy as np
import torch

from kvferry.policies.decode.layout import Layout
from kvferry.specs.errors import InputError
from kvferry.system.aligned_memory import aligned_memory


class UnitFormat:
    """A unit is [keys and values, heads, tokens, head_dim] in the model's own numbers, then zeros up to its stride.

    A row of the layout is a sequence with all its KV heads, or one head of it. Raises InputError for a layout whose
    units have another size.
    """

    def __init__(self, layout: Layout, *, group_tokens: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.layout, self._dtype = layout, dtype
        self.group_tokens, self.kv_heads = group_tokens, kv_heads
        if kv_heads % layout.heads:
            raise InputError(f"a layout for {layout.heads} heads cannot hold {kv_heads} KV heads")
        self.shape = (2, kv_heads // layout.heads, group_tokens, head_dim)
        n_bytes = int(np.prod(self.shape)) * dtype.itemsize
        if n_bytes != layout.unit_bytes:
            raise InputError(
                f"a group of {group_tokens} tokens in {_name(dtype)} takes {n_bytes} bytes per row, the layout has"
                f" {layout.unit_bytes}; is the model's kv_value_bytes that of its dtype?"
            )

    @property
    def rows(self) -> int:
        return self.layout.sequences * self.layout.heads

    def units(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """KV of whole groups, each [sequences, KV heads, tokens, head_dim], as units [rows, groups, *shape]."""
        both = torch.stack([keys, values])
        _, heads, tokens, _ = self.shape
        by_row = both.unflatten(2, (-1, heads)).flatten(1, 2).unflatten(3, (-1, tokens))  # sides rows heads groups
        return by_row.permute(1, 3, 0, 2, 4, 5)

    def packed(self, layers: Sequence[torch.Tensor]) -> memoryview:
        """Units [rows, groups, *shape] of each layer as they lie in the file, stretch after stretch; in memory that
        direct I/O takes as it is."""
        rows, groups = layers[0].shape[:2]
        whole = aligned_memory(len(layers) * rows * groups * self.layout.stride_bytes)
        there = np.frombuffer(whole, np.uint8).reshape(len(layers), rows, groups, self.layout.stride_bytes)
        for into, units in zip(there, layers, strict=True):
            flat = units.to("cpu").contiguous().flatten(2).view(torch.uint8).numpy()
            into[..., : self.layout.unit_bytes] = flat
        return whole

    def unpacked(self, read: np.ndarray) -> torch.Tensor:
        """Bytes uint8[n, m x stride] as they were read, as units [n x m, *shape]: a view where they lie well."""
        by_unit = read.reshape(-1, self.layout.stride_bytes)[:, : self.layout.unit_bytes]
        flat = torch.from_numpy(by_unit if by_unit.flags.writeable else by_unit.copy())
        return flat.view(self._dtype).unflatten(1, self.shape)

    def side_by_side(self, units: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Units [rows, groups, *shape] as keys and values, each [sequences, KV heads, tokens, head_dim]."""
        by_sequence = units.unflatten(0, (self.layout.sequences, self.layout.heads))
        # sequences, heads, groups, sides, heads of a row, tokens, head_dim
        keys, values = by_sequence.permute(3, 0, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)
        return keys, values


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
