"""A session's KV as the cache that transformers' generate() continues from, without copying the context."""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from kvferry.model.kv import SessionKv
from kvferry.specs.errors import KvferryError


def cache_of(kv: SessionKv) -> DynamicCache:
    """The context as a cache. New tokens go into the session's spare room, beyond it into memory of their own.

    There is one room: the next cache of the same KV takes it over, and an older one then raises KvferryError.
    """
    kv.tenant = object()
    cache = DynamicCache()
    cache.layers = [RoomLayer(kv, l) for l in range(kv.layers)]
    return cache


class RoomLayer(DynamicLayer):
    """One layer that grows in place, where DynamicLayer would copy the whole context for every new token."""

    def __init__(self, kv: SessionKv, l: int) -> None:
        super().__init__()
        self._kv, self._l, self._tenant = kv, l, kv.tenant
        self.lazy_initialization(kv.keys, kv.values)
        self._show(kv.total_tokens)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._kv.tenant is not self._tenant:
            raise KvferryError("this cache was replaced by a newer one of the same session")
        kv, begin = self._kv, self.keys.shape[-2]
        end = begin + key_states.shape[-2]
        # What did not fit into the room was copied out of it, as is a cache repeated for several answers.
        if end > kv.capacity or self.keys.data_ptr() != kv.keys[self._l].data_ptr():
            return super().update(key_states, value_states, *args, **kwargs)
        kv.keys[self._l, :, :, begin:end] = key_states
        kv.values[self._l, :, :, begin:end] = value_states
        self._show(end)
        return self.keys, self.values

    def _show(self, tokens: int) -> None:
        self.keys = self._kv.keys[self._l, :, :, :tokens]
        self.values = self._kv.values[self._l, :, :, :tokens]
