"""The KV of one sequence, by layer, token chunk and head, in buffers with room for what is decoded later."""

from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np
import torch

from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces.chunks import KEY_BLOCK


class NotReady(KvferryError):
    """What an operation needs is not there yet: names it."""


class SessionKv:
    """Keys (with their rotary embedding) and values of every layer, filled chunk by chunk from two sides.

    ``tokens[t]`` and ``starts[t]``: how many tokens chunk t has, and how many come before it. One thread writes
    what is computed and reads; another may load at the same time: a chunk present with all heads is never loaded over.
    `spare`: of another sequence of the same model, which is over, and whose buffers serve this one if they are large
    enough.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        *,
        layers: int,
        heads: int,
        head_dim: int,
        room: int,
        dtype: torch.dtype,
        device: torch.device,
        spare: "SessionKv | None" = None,
    ) -> None:
        self.tokens = tuple(tokens)
        self.starts = tuple(accumulate(self.tokens, initial=0))[:-1]
        self.total_tokens = sum(self.tokens)
        self.layers, self.heads, self.head_dim = layers, heads, head_dim
        self.dtype, self.device = dtype, device
        # Whole key blocks, for kernels that read nothing smaller.
        self.capacity = -(-(self.total_tokens + room) // KEY_BLOCK) * KEY_BLOCK
        # Zeros and not just any memory: what a kernel masks out it still multiplies by 0, and NaN would survive.
        shape = (layers, 1, heads, self.capacity, head_dim)
        reused = spare if spare is not None and spare.capacity >= self.capacity else None
        self.keys: torch.Tensor = torch.zeros(shape, dtype=dtype, device=device) if reused is None else reused.keys
        self.values: torch.Tensor = torch.zeros_like(self.keys) if reused is None else reused.values
        self.capacity = self.keys.shape[3]
        self._present = np.zeros((len(self.tokens), layers, heads), dtype=bool)
        self._use = 0
        self._lock = Lock()
        # Which cache may write into the room behind the context: see cache.py.
        self.tenant: object = None

    def append(
        self, layer: int, begin: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes KV (heads x tokens x head_dim) of tokens that follow `begin` others; returns all up to the last of
        them."""
        end = begin + keys.shape[1]
        both = self.keys[layer, 0], self.values[layer, 0]
        for side, new in zip(both, (keys, values), strict=True):
            side[:, begin:end] = new
        return both[0][:, :end], both[1][:, :end]

    @property
    def n_bytes(self) -> int:
        return 2 * self.keys.nbytes

    def touch(self) -> None:
        """Have the system give the buffers their memory now, and not when they are first written to."""
        self.keys.zero_()
        self.values.zero_()

    @property
    def complete(self) -> bool:
        return bool(self._present.all())

    def present(self, t: int, l: int) -> bool:
        """Whether all heads of a chunk are there."""
        return bool(self._present[t, l].all())

    def missing(self, l: int, chunks: int) -> list[int]:
        """Which of the first `chunks` token chunks lack KV in layer l."""
        return np.flatnonzero(~self._present[:chunks, l].all(axis=1)).tolist()

    def put(self, t: int, l: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Computed KV of all heads, [1, heads, tokens, head_dim]: it replaces what was loaded, being exact."""
        with self._lock:
            self._slot(self.keys, t, l).copy_(keys)
            self._slot(self.values, t, l).copy_(values)
            self._present[t, l] = True

    def load(self, t: int, l: int, h: int | None, keys: Any, values: Any, use: int | None = None) -> bool:
        """KV that came from elsewhere, of one head [tokens, head_dim] or of all [heads, tokens, head_dim].

        Tensors or arrays, of any float type and device. False when it was there already, or when the buffers are not
        in the `use` any more that it is meant for (None: whichever it is): nothing is changed.
        Raises InputError when the shape is not this chunk's.
        """
        heads = slice(None) if h is None else slice(h, h + 1)
        sides = [torch.as_tensor(side) for side in (keys, values)]
        wanted = (self.heads, self.tokens[t], self.head_dim) if h is None else (self.tokens[t], self.head_dim)
        for side in sides:
            if tuple(side.shape) != wanted:
                raise InputError(
                    f"KV of token chunk {t}, layer {l} came as {tuple(side.shape)}, this model and context need "
                    f"{wanted}; was it stored for them?"
                )
        with self._lock:
            if use not in (None, self._use) or self._present[t, l, heads].all():
                return False
            for buffer, side in zip((self.keys, self.values), sides, strict=True):
                self._slot(buffer, t, l)[0, heads].copy_(side if h is None else side[None])
            self._settle()
            self._present[t, l, heads] = True
        return True

    def put_whole(self, t: int, kv: torch.Tensor) -> None:
        """KV of all layers of a chunk, [layers, 2, heads, tokens, head_dim]."""
        at = slice(self.starts[t], self.starts[t] + self.tokens[t])
        with self._lock:
            self.keys[:, 0, :, at].copy_(kv[:, 0])
            self.values[:, 0, :, at].copy_(kv[:, 1])
            self._settle()
            self._present[t] = True

    def drop(self, t: int, l: int, h: int | None = None) -> None:
        """Forget a chunk, of one head or all."""
        with self._lock:
            self._present[t, l, slice(None) if h is None else h] = False

    def chunk(self, t: int, l: int, h: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one head's chunk, each a view [tokens, head_dim]. Raises NotReady."""
        if not self._present[t, l, h]:
            raise NotReady(f"KV of token chunk {t}, layer {l}, head {h} is not there")
        return self._slot(self.keys, t, l)[0, h], self._slot(self.values, t, l)[0, h]

    def attended(self, t: int, l: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What chunk t attends in layer l: views [1, heads, tokens up to its end, head_dim]. Raises NotReady."""
        lacking = self.missing(l, t + 1)
        if lacking:
            raise NotReady(f"token chunk {t} cannot attend in layer {l}: KV of token chunks {_few(lacking)} is missing")
        end = self.starts[t] + self.tokens[t]
        return self.keys[l, :, :, :end], self.values[l, :, :, :end]

    def clear(self) -> int:
        """Nothing is present any more, and a new use begins: the buffers are the next sequence's. Its number."""
        with self._lock:
            self._present[:] = False
            self._use += 1
            return self._use

    def _settle(self) -> None:
        """Present means readable by any stream. Only this thread waits, and only for its own stream."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _slot(self, buffer: torch.Tensor, t: int, l: int) -> torch.Tensor:
        return buffer[l, :, :, self.starts[t] : self.starts[t] + self.tokens[t]]


def _few(chunks: list[int]) -> str:
    return ", ".join(map(str, chunks[:5])) + (" ..." if len(chunks) > 5 else "")
