"""One context on a real model: its KV comes in chunk by chunk, loaded or computed in any mix, then it answers.

For token chunk t and layer l, counted from 0: `project` emits K and V of the layer from the hidden state below
it; `advance` carries that state through the layer, which takes KV of all earlier chunks there, all heads, from
either path. A chunk (t, l, h) can be loaded at any time. A column that is computed goes project 0, advance 0,
project 1, ... to the last layer, where projecting suffices.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from kvferry.model.attention import Attention, dense
from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.decoders import decoder_of
from kvferry.model.kv import NotReady, SessionKv
from kvferry.model.models import window_of
from kvferry.model.request_session import step
from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces.chunks import CHUNK_TOKENS, token_chunks


def cache_of(kv: SessionKv) -> DynamicCache:
    """The context as a cache. New tokens go into the session's spare room, beyond it into memory of their own.

    There is one room: the next cache of the same KV takes it over, and an older one then raises KvferryError.
    """
    kv.tenant = object()
    cache = DynamicCache()
    cache.layers = [RoomLayer(kv, l) for l in range(kv.layers)]
    return cache


class RoomLayer(DynamicLayer):  # type: ignore[misc]
    """One layer that grows in place, where DynamicLayer would copy the whole context for every new token."""

    def __init__(self, kv: SessionKv, l: int) -> None:
        super().__init__()
        self._kv, self._l, self._tenant = kv, l, kv.tenant
        self.lazy_initialization(kv.keys, kv.values)
        self.show(kv.total_tokens)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._kv.tenant is not self._tenant:
            raise KvferryError("this cache was replaced by a newer one of the same session")
        kv, begin = self._kv, self.keys.shape[-2]
        end = begin + key_states.shape[-2]
        if end > kv.capacity or not self.in_room:
            return super().update(key_states, value_states, *args, **kwargs)
        kv.keys[self._l, :, :, begin:end] = key_states
        kv.values[self._l, :, :, begin:end] = value_states
        self.show(end)
        return self.keys, self.values

    @property
    def in_room(self) -> bool:
        """False for what did not fit and was copied out of it, as is a cache repeated for several answers, and for one
        that was replaced."""
        return self._kv.tenant is self._tenant and bool(self.keys.data_ptr() == self._kv.keys[self._l].data_ptr())

    def show(self, tokens: int) -> None:
        self.keys = self._kv.keys[self._l, :, :, :tokens]
        self.values = self._kv.values[self._l, :, :, :tokens]


class _InRoom:
    """A Growing: what stands in the room behind the context of `kv`, which `cache` has too once it is ``shown``."""

    def __init__(self, kv: SessionKv, cache: DynamicCache, history: list[int]) -> None:
        self._kv, self._layers, self.history = kv, cache.layers, history

    @property
    def fits(self) -> bool:
        """Whether there is room for one more token, and the cache has not left it."""
        layers: list[RoomLayer] = self._layers
        return len(self.history) < self._kv.capacity and layers[0].in_room

    def shown(self) -> None:
        for layer in self._layers:
            if layer.in_room:
                layer.show(len(self.history))

    def make_room(self, decoder: Decoder, tokens: int) -> None:
        """There is room where it `fits`."""

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As RequestSession does."""
        return self._kv.append(layer, len(self.history), keys, values)


class Session:
    """The story of one sequence, batch 1. Computing and answering belong to one thread, loading may be another's.

    `room` tokens of questions and answers are decoded without moving the context. `kv` gives buffers to use again:
    those of a finished session with the same model, context length and room; `rotary` that of at least as many
    positions.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context: Sequence[int],
        *,
        chunk_tokens: int = CHUNK_TOKENS,
        room: int = 256,
        attention: Attention = dense,
        kv: SessionKv | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        self.decoder = decoder_of(model, latent=False)
        self.context = self.decoder.token_ids([context])
        if chunk_tokens < 1:
            raise InputError(f"chunks need at least one token each, not {chunk_tokens}")
        tokens = token_chunks(len(context), chunk_tokens)
        self.kv = kv or new_kv(self.decoder, tokens, room)
        if self.kv.tokens != tuple(tokens):
            raise InputError("the buffers to use again are those of another context")
        self._use = self.kv.clear()
        self._attention = attention
        # depth[t]: the layer below which chunk t's hidden state stands; None: it was not begun.
        self.depth: list[int] = [0] * len(tokens)
        self._hidden: list[torch.Tensor | None] = [None] * len(tokens)
        self._rotary: Rotary = rotary or self.decoder.rotary(len(context))
        self._cache: DynamicCache | None = None

    @property
    def complete(self) -> bool:
        """Whether all KV is there."""
        return self.kv.complete

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def project(self, t: int, l: int) -> None:
        """Make sure that chunk t has its KV of layer l, computed from the hidden state below that layer.

        Raises NotReady unless the column stands there, or has passed with the KV still in place.
        """
        if self.depth[t] > l and self.kv.present(t, l):
            return
        self.kv.put(t, l, *self.decoder.keys_values(l, self._below(t, l), self._rotary_of(t)))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def advance(self, t: int, l: int) -> None:
        """Make sure that chunk t has passed layer l. Raises NotReady when KV of the layer is missing up to t."""
        if self.depth[t] > l:
            return
        hidden = self._below(t, l)
        queries = self.decoder.queries(l, hidden, self._rotary_of(t))
        self._hidden[t] = self.decoder.above(l, hidden, self._attention(queries, self.kv, t, l))
        self.depth[t] = l + 1

    def load(self, t: int, l: int, h: int | None, keys: Any, values: Any) -> bool:
        """Take in a streamed chunk (h None: of all heads); see SessionKv.load. False too once another session has these
        buffers."""
        return self.kv.load(t, l, h, keys, values, self._use)

    def drop(self, t: int, l: int, h: int | None = None) -> None:
        """Forget a chunk. It can be loaded again, and computed while the column has not passed it."""
        self.kv.drop(t, l, h)

    def prefill(self) -> None:
        """Compute all that is missing, as a local prefill does: one token chunk after the other, layer by layer."""
        for t in range(len(self.kv.tokens)):
            missing = [l for l in range(self.kv.layers) if not self.kv.present(t, l)]
            for l in missing:
                for below in range(self.depth[t], l):
                    self.advance(t, below)
                self.project(t, l)

    def cache(self) -> DynamicCache:
        """The context as `past_key_values`, once it is complete. A newer cache of this session ends an older one."""
        if not self.complete:
            lacking = [l for l in range(self.kv.layers) if self.kv.missing(l, len(self.kv.tokens))]
            raise NotReady(f"the context cannot be used yet: KV is missing in layers {lacking[:5]}")
        self._hidden = [None] * len(self._hidden)
        return cache_of(self.kv)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def read(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [vocabulary] of the token that follows the context and all that was read, these tokens included.

        The question first, then token by token what is decoded. Raises NotReady while the context is incomplete.
        """
        ids = self.decoder.token_ids([tokens])
        if self._cache is None:
            self._cache = self.cache()
            self._behind = _InRoom(self.kv, self._cache, self.context[0].tolist())
        behind = self._behind
        if len(tokens) == 1 and behind.fits:
            # As wherever answers are decoded token by token: one way, and one time.
            return step(self.decoder, self._rotary_to(len(behind.history) + 1), [behind], list(tokens))[-1]
        behind.shown()
        behind.history += ids[0].tolist()
        logits: torch.Tensor = self.decoder.model(ids, past_key_values=self._cache, logits_to_keep=1).logits
        return logits[0, -1]

    def generate(self, question: Sequence[int], **settings: Any) -> list[int]:
        """The answer that transformers' generate() gives, with its settings (max_new_tokens, do_sample, ...).

        It begins from the context, whatever was read before; so does what is read afterwards. One answer: no beams.
        """
        for setting in ("num_beams", "num_return_sequences"):
            if settings.get(setting, 1) != 1:
                raise InputError(f"{setting}={settings[setting]}: a session decodes one sequence")
        self._cache = None
        ids = torch.cat([self.context, self.decoder.token_ids([question])], dim=1)
        answered = self.decoder.model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=self.cache(), **settings
        )
        answer: list[int] = answered[0, ids.shape[1] :].tolist()
        return answer

    def _below(self, t: int, l: int) -> torch.Tensor:
        """The hidden state of chunk t below layer l."""
        if self.depth[t] != l:
            where = "has passed it" if self.depth[t] > l else f"stands below layer {self.depth[t]}"
            raise NotReady(f"token chunk {t} has no hidden state below layer {l}: its column {where}")
        hidden = self._hidden[t]
        if hidden is None:
            if l > 0:
                raise NotReady(f"the hidden state of token chunk {t} was given up when the context was complete")
            start = self.kv.starts[t]
            hidden = self._hidden[t] = self.decoder.embed(self.context[:, start : start + self.kv.tokens[t]])
        return hidden

    def _rotary_of(self, t: int) -> Rotary:
        start = self.kv.starts[t]
        cos, sin = self._rotary
        return cos[:, :, start : start + self.kv.tokens[t]], sin[:, :, start : start + self.kv.tokens[t]]

    def _rotary_to(self, tokens: int) -> Rotary:
        """Of this many positions, and as many more as there is room for, and as the model's window allows."""
        if self._rotary[0].shape[2] < tokens:
            most = window_of(self.decoder.model.config) or self.kv.capacity
            self._rotary = self.decoder.rotary(max(tokens, min(self.kv.capacity, most)))
        return self._rotary


def new_kv(decoder: Decoder, tokens: Sequence[int], room: int, spare: SessionKv | None = None) -> SessionKv:
    """Empty buffers for a context of these token chunks, those of `spare` if they will do. Raises InputError when they
    do not fit into memory."""
    try:
        return SessionKv(
            tokens,
            layers=decoder.layers,
            heads=decoder.heads,
            head_dim=decoder.head_dim,
            room=room,
            dtype=decoder.dtype,
            device=decoder.device,
            spare=spare,
        )
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise InputError(f"the KV of {sum(tokens)} tokens does not fit into the memory of {decoder.device}") from error
