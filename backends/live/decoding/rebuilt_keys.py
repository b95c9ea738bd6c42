"""Keys that no file holds: a low-rank cache made at prefill, from which chosen ones are rebuilt (ShadowKV)."""

from collections.abc import Callable

import numpy as np
import torch

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.indexes.index import principal_directions
from kvferry.model.decoder import Rotary, rotated, unrotated


class RebuiltKeys:
    """Per layer and sequence, keys of all heads side by side as a product [tokens, rank] x [rank, key width].

    Keys are decomposed without their rotary embedding, as their rank is far lower then (ShadowKV, Section 3.1), and get
    it again when they are rebuilt. Those of KV blocks that are completed while decoding are projected on the directions
    that the prompt gave. The rotary embedding is that of all positions, and `rotary_in` says what of it a layer takes.
    """

    def __init__(
        self,
        format: BlockFormat,
        rank: int,
        rotary: Rotary,
        *,
        device: torch.device,
        rotary_in: Callable[[int, Rotary], Rotary] = lambda layer, rotary: rotary,
    ) -> None:
        layout = format.layout
        self._format, self._rotary, self._rotary_in = format, rotary, rotary_in
        self._tokens = [0] * layout.layers
        like = {"dtype": format.dtype, "device": device}
        width, room = format.kv_heads * format.head_dim, layout.blocks * format.group_tokens
        self._low = torch.zeros((layout.layers, layout.sequences, room, rank), **like)
        self._directions = torch.zeros((layout.layers, layout.sequences, width, rank), **like)

    @property
    def n_bytes(self) -> int:
        return self._low.nbytes + self._directions.nbytes

    def decompose(self, layer: int, keys: torch.Tensor) -> None:
        """Keep a layer's keys [sequences, KV heads, tokens, head_dim] of the prompts' whole KV blocks."""
        flat = self._flat(unrotated(keys, self._at(layer, torch.arange(keys.shape[2]))))
        rank = self._directions.shape[-1]
        self._directions[layer] = principal_directions(flat)[..., :rank].to(keys.dtype)
        self._keep(layer, 0, flat)

    def append(self, layer: int, keys: torch.Tensor) -> None:
        """Keep keys of further KV blocks, in the same directions."""
        begin = self._tokens[layer]
        positions = torch.arange(begin, begin + keys.shape[2])
        self._keep(layer, begin, self._flat(unrotated(keys, self._at(layer, positions))))

    def rebuilt(self, layer: int, ids: np.ndarray | None) -> torch.Tensor:
        """Returns keys [sequences, KV heads, tokens, head_dim] of KV blocks int[rows, k]; None: of all that are
        kept."""
        format = self._format
        layout, group = format.layout, format.group_tokens
        if ids is None:
            ids = np.arange(self._tokens[layer] // group)[None].repeat(format.rows, 0)
        # sequences, heads that choose for themselves, tokens
        chosen = torch.from_numpy(ids).long().unflatten(0, (layout.sequences, layout.heads))
        positions = (chosen[..., None] * group + torch.arange(group)).flatten(2)
        each = torch.arange(layout.sequences)[:, None, None]
        low = self._low[layer][each, positions]  # sequences, heads, tokens, rank
        by_head = self._directions[layer].unflatten(1, (layout.heads, -1))  # sequences, heads, width of each, rank
        keys = (low @ by_head.mT).unflatten(-1, (-1, format.head_dim)).transpose(2, 3)
        cos, sin = self._rotary_in(layer, self._rotary)
        at = (cos[0, 0, positions][:, :, None], sin[0, 0, positions][:, :, None])
        return rotated(keys, at).flatten(1, 2)

    def _keep(self, layer: int, begin: int, flat: torch.Tensor) -> None:
        end = self._tokens[layer] = begin + flat.shape[1]
        self._low[layer, :, begin:end] = flat @ self._directions[layer]

    def _at(self, layer: int, positions: torch.Tensor) -> Rotary:
        cos, sin = self._rotary_in(layer, self._rotary)
        return cos[:, :, positions], sin[:, :, positions]

    @staticmethod
    def _flat(keys: torch.Tensor) -> torch.Tensor:
        """Returns [sequences, tokens, key width]"""
        return keys.transpose(1, 2).flatten(2)
