"""Keys and queries of a run, noted as they are made."""

import torch

from kvferry.specs.errors import InputError
from kvferry.traces.key_recording import KeyRecording


class NotedKeys:
    """Notes keys and queries of the first sequence, as attention meets them."""

    def __init__(self, layers: int) -> None:
        self._keys: list[list[torch.Tensor]] = [[] for _ in range(layers)]
        self._queries: list[list[torch.Tensor]] = [[] for _ in range(layers)]

    def put(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        """Adds further tokens: queries [sequences, query heads, tokens, head_dim], keys [sequences, KV heads,
        tokens, head_dim]."""
        self._keys[layer].append(keys[0].float().cpu())
        self._queries[layer].append(queries[0].unflatten(0, (keys.shape[1], -1)).float().cpu())

    def recording(self) -> KeyRecording:
        """Raises InputError where layers were not attended equally often."""
        keys = [torch.cat(of_layer, dim=1) for of_layer in self._keys if of_layer]
        if len(keys) != len(self._keys) or len({of_layer.shape for of_layer in keys}) != 1:
            raise InputError("live.record_keys: not every layer has met the same tokens")
        queries = [torch.cat(of_layer, dim=2) for of_layer in self._queries]
        return KeyRecording(torch.stack(keys).numpy(), torch.stack(queries).numpy())
