"""One request on a real model: its prompt may be read piece by piece, cut on the way, and its answer taken back."""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from kvferry.model.decoder import Decoder, Rotary

# Queries at a prompt's end whose attention says what matters: the observation window of SnapKV (its Sec. 4.1 has 16 to
# 64).
OBSERVED_TOKENS = 32
# How much longer buffers become when they must.
_STEP_TOKENS = 256


class RequestSession:
    """KV of one sequence, and the tokens behind it. ``ids``: the prompt, which may change beyond what has been read.

    ``observed``: the attention that the prompt's last queries pay each of its tokens, summed over these queries,
    float[layers x query heads, tokens], where `observes`; zeros before they are read.
    """

    def __init__(self, ids: Sequence[int], *, observes: bool = False) -> None:
        self.ids = list(ids)
        self.observed = torch.zeros(0)
        # Whose KV is there.
        self.history: list[int] = []
        self._observes = observes
        self._keys = self._values = torch.zeros(0)

    def more(self, decoder: Decoder, rotary: Rotary, tokens: int) -> torch.Tensor:
        """Reads the next tokens of the prompt, and returns logits [vocabulary] behind the last."""
        at = len(self.history)
        return self._read(decoder, rotary, self.ids[at : at + tokens], 1)[-1]

    def after(self, decoder: Decoder, rotary: Rotary, ids: list[int], last: int = 1) -> torch.Tensor:
        """Logits [last, vocabulary] behind each of the last of these ids, which are the whole sequence: only what is
        not there yet is read, and what else was there is forgotten. A single further token is read as in a batch."""
        kept = min(len(ids) - last, len(self.history))
        # Lists compare much faster than their items one by one, and mostly agree.
        if self.history[:kept] != ids[:kept]:
            kept = next(n for n, (a, b) in enumerate(zip(self.history, ids, strict=False)) if a != b)
        del self.history[kept:]
        left = ids[kept:]
        return step(decoder, rotary, [self], left) if len(left) == 1 else self._read(decoder, rotary, left, last)

    # --- what a batch needs --------------------------------------------------------------------------------------

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put KV [KV heads, tokens, head_dim] of further tokens into a layer; returns all that is there, each
        [KV heads, tokens, head_dim]. ``history`` grows when all layers have theirs."""
        begin = len(self.history)
        end = begin + keys.shape[1]
        self._keys[layer, :, begin:end], self._values[layer, :, begin:end] = keys, values
        return self._keys[layer, :, :end], self._values[layer, :, :end]

    def make_room(self, decoder: Decoder, tokens: int) -> None:
        """Makes room for `tokens` more tokens."""
        needed = len(self.history) + tokens
        have = self._keys.shape[2] if self._keys.ndim == 4 else 0
        if needed <= have:
            return
        shape = (decoder.layers, decoder.heads, max(needed, len(self.ids)) + _STEP_TOKENS, decoder.head_dim)
        grown = [torch.zeros(shape, dtype=decoder.dtype, device=decoder.device) for _ in range(2)]
        if have:
            grown[0][:, :, :have], grown[1][:, :, :have] = self._keys, self._values
        self._keys, self._values = grown

    # --- one by itself -------------------------------------------------------------------------------------------

    def _read(self, decoder: Decoder, rotary: Rotary, ids: Sequence[int], last: int) -> torch.Tensor:
        """Logits behind each of the last of these tokens, [last, vocabulary]."""
        self.make_room(decoder, len(ids))
        begin, end = len(self.history), len(self.history) + len(ids)
        cos, sin = (side[:, :, begin:end] for side in rotary)
        hidden = decoder.embed(decoder.token_ids([ids]))
        # A prompt from its beginning has a kernel of its own, which needs no mask.
        causal = causal_lower_right(len(ids), end) if begin else None
        for layer in range(decoder.layers):
            keys, values = decoder.keys_values(layer, hidden, (cos, sin))
            queries = decoder.queries(layer, hidden, (cos, sin))
            keys, values = self.put(layer, keys[0], values[0])
            attended = F.scaled_dot_product_attention(
                queries, keys[None], values[None], attn_mask=causal, is_causal=not begin, enable_gqa=True
            )
            if self._observes:
                self._observe(layer, queries[0], keys, begin)
            hidden = decoder.above(layer, hidden, attended)
        self.history += ids
        return decoder.logits(hidden[0, -last:])

    def _observe(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, begin: int) -> None:
        """Add what the last queries of the prompt among `queries` [query heads, tokens, head_dim] attend."""
        tokens, end = len(self.ids), keys.shape[1]
        first = max(begin, tokens - OBSERVED_TOKENS)
        if first >= end or end > tokens:
            return
        heads = queries.shape[0]
        asking = queries[:, first - begin :].unflatten(0, (keys.shape[0], -1)).float() * queries.shape[-1] ** -0.5
        scores = asking @ keys[:, None].float().transpose(-1, -2)
        hidden = torch.arange(end, device=keys.device) > torch.arange(first, end, device=keys.device)[:, None]
        mass = scores.masked_fill(hidden, -torch.inf).softmax(-1).sum(-2).flatten(0, 1)
        if self.observed.ndim != 3:
            self.observed = torch.zeros((self._keys.shape[0], heads, tokens))
        self.observed[layer, :, :end] += mass.cpu()


class Growing(Protocol):
    """KV of one sequence that decodes; its members are as RequestSession has them."""

    history: list[int]

    def make_room(self, decoder: Decoder, tokens: int) -> None: ...
    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


def step(decoder: Decoder, rotary: Rotary, sessions: Sequence[Growing], ids: Sequence[int]) -> torch.Tensor:
    """One more token of each sequence, in one pass; logits [sequences, vocabulary] behind them."""
    for session in sessions:
        session.make_room(decoder, 1)
    positions = [len(session.history) for session in sessions]
    cos, sin = (side[0, 0, positions][:, None, None] for side in rotary)
    hidden = decoder.embed(decoder.token_ids([[one] for one in ids]))
    for layer in range(decoder.layers):
        keys, values = decoder.keys_values(layer, hidden, (cos, sin))
        queries = decoder.queries(layer, hidden, (cos, sin))
        attended = []
        for n, session in enumerate(sessions):
            cached = session.put(layer, keys[n], values[n])
            # Query heads that share a key head are the queries of one.
            by_kv_head = queries[n, :, 0].unflatten(0, (decoder.heads, -1))
            attended.append(F.scaled_dot_product_attention(by_kv_head, *cached).flatten(0, 1)[:, None])
        hidden = decoder.above(layer, hidden, torch.stack(attended))
    for session, one in zip(sessions, ids, strict=True):
        session.history.append(one)
    return decoder.logits(hidden[:, -1])
