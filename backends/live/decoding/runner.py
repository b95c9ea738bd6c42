"""Ops of decoding with KV on storage, carried out on a real model: the memory that the pipeline's decisions are about.

What to read, where it lies and which slot takes it are policies' business; here are the tensors. In memory lie the
low-rank keys, the slots of the reuse buffers and the rolling buffer; all other KV is in the file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.kv_file import UnitFormat
from kvferry.backends.live.decoding.low_rank import LowRankKeys
from kvferry.backends.live.model.decoder import Decoder
from kvferry.backends.live.model.whole_prefill import prefill_layer
from kvferry.backends.live.storage.direct_storage import Data
from kvferry.machine.ops import (
    Attended,
    Bookkeep,
    DecodeAttention,
    Extents,
    FeedForward,
    Op,
    OutputHead,
    PrefillLayer,
    Select,
    Selection,
)
from kvferry.specs.errors import InputError, KvferryError

# Told logits [sequences, vocabulary] of every token, before it is chosen.
Listener = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class Written:
    """What an op leaves to be written: bytes as they lie in the file."""

    data: memoryview


def source(extents: Extents, request: int | None, inputs: Sequence[Any]) -> memoryview:
    """For a LiveMachine: what a write is of, from the op that it comes after."""
    return inputs[0].data


class OffloadRunner:
    """A lock-step batch of prompts of equal length, layer by layer. One thread calls `run`.

    `keys` are empty, and None where everything is read. `slots` per row of each layer's reuse buffer, 0: none.
    `follow` [sequences][tokens] are said instead of what the model would say. Raises InputError for prompts that do
    not fit the layout.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        units: UnitFormat,
        *,
        output: int,
        slots: int = 0,
        keys: LowRankKeys | None = None,
        follow: Sequence[Sequence[int]] | None = None,
        listen: Listener = lambda logits: None,
    ) -> None:
        self.decoder = decoder = Decoder(model)
        lengths = {len(prompt) for prompt in prompts}
        if len(prompts) != units.layout.sequences or len(lengths) != 1:
            raise InputError(
                f"{units.layout.sequences} prompts of one length decode together, "
                f"not {len(prompts)} of {', '.join(map(str, sorted(lengths)))} tokens"
            )
        if (decoder.heads, decoder.layers) != (units.kv_heads, units.layout.layers):
            raise InputError(
                f"the layout has {units.layout.layers} layers and {units.kv_heads} KV heads, "
                f"the model {decoder.layers} and {decoder.heads}"
            )
        self._units, self._keys, self._listen = units, keys, listen
        self._prompts = torch.tensor([list(prompt) for prompt in prompts], dtype=torch.long, device=decoder.device)
        if self._prompts.min() < 0 or self._prompts.max() >= decoder.vocabulary:
            raise InputError(f"token ids must lie in 0..{decoder.vocabulary - 1}")
        self._follow = None if follow is None else torch.tensor([list(one) for one in follow], device=decoder.device)
        self._context = self._prompts.shape[1]
        self._rotary = decoder.rotary(self._context + output)
        memory = {"dtype": decoder.dtype, "device": decoder.device}
        self._slots = torch.zeros((decoder.layers, units.rows * slots, *units.shape), **memory) if slots else None
        self._first_slot = torch.arange(units.rows, device=decoder.device)[:, None] * slots
        rolling = (decoder.layers, 2, len(prompts), decoder.heads, units.group_tokens, decoder.head_dim)
        self._rolling = torch.zeros(rolling, **memory)
        # Tokens in the rolling buffer, the one under way not among them; whose position that one has.
        self._recent = self._context % units.group_tokens
        self._position = self._context - 1
        self._hidden = decoder.embed(self._prompts)
        self._attended: torch.Tensor | None = None
        # Layers that the hidden state has passed.
        self._depth = 0
        # Token ids said so far, by sequence.
        self.answers: list[list[int]] = [[] for _ in prompts]
        # int32[sequences, heads, k], step after step, layer after layer.
        self.chosen: list[torch.Tensor] = []

    @property
    def metadata_bytes(self) -> int:
        """What the choice of groups takes in memory."""
        return self._keys.n_bytes if self._keys else 0

    @property
    def buffer_bytes(self) -> int:
        """What reuse buffers and rolling buffers take."""
        return self._rolling.nbytes + (0 if self._slots is None else self._slots.nbytes)

    @torch.no_grad()
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Raises InputError for ops that it does not have, KvferryError for one out of turn."""
        sequences = len(self.answers)
        if getattr(op, "batch", sequences) != sequences:
            raise KvferryError(f"{type(op).__name__} of a batch of {op.batch}, there are {sequences} prompts")  # type: ignore[union-attr]
        match op:
            case PrefillLayer():
                return self._prefill(self._next(op, op.layer))
            case Select():
                return self._select(op)
            case Bookkeep():
                return None
            case DecodeAttention(kv=Attended() as kv):
                return self._attend(kv, inputs)
            case FeedForward():
                return self._feed_forward(self._next(op, op.layer))
            case OutputHead():
                return self._say(op)
        raise InputError(f"{type(op).__name__} is no op of decoding with KV on storage")

    def slot_units(self, layer: int) -> torch.Tensor:
        """What a layer's reuse buffer holds, [rows, slots, *shape of a unit]."""
        assert self._slots is not None
        return self._slots[layer].unflatten(0, (self._units.rows, -1))

    # --- ops -----------------------------------------------------------------------------------------------------

    def _prefill(self, layer: int) -> Written:
        keys, values = self._prefilled(layer)
        self._depth += 1
        whole = self._context - self._recent
        if self._keys is not None:
            self._keys.append(layer, keys[:, :, :whole])
        self._rolling[layer, 0, :, :, : self._recent] = keys[:, :, whole:]
        self._rolling[layer, 1, :, :, : self._recent] = values[:, :, whole:]
        return Written(self._units.packed([self._units.units(keys[:, :, :whole], values[:, :, :whole])]))

    def _prefilled(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the prompts in a layer, each [sequences, KV heads, tokens, head_dim]."""
        self._hidden, keys, values = prefill_layer(self.decoder, layer, self._hidden, self._rotary_at(0, self._context))
        return keys, values

    def _select(self, op: Select) -> Selection:
        """The hidden state below some layer stands in for the one below `op.layer`, of which it is the input."""
        if self._keys is None:
            raise KvferryError("nothing can be selected without compressed keys")
        groups = self._keys.groups(op.layer)
        if op.k > groups:
            raise KvferryError(f"{op.k} groups are to be selected, {groups} are on storage")
        queries = self.decoder.queries(op.layer, self._hidden, self._rotary_at(self._position, self._position + 1))
        scores = self._keys.scores(op.layer, queries, op.heads)
        # In the order of the file, which is the order of reading and of entering the reuse buffer.
        ids = scores.topk(op.k, dim=-1).indices.sort(-1).values.to(torch.int32).cpu()
        self.chosen.append(ids)
        return Selection(ids.numpy())

    def _attend(self, kv: Attended, inputs: Sequence[Any]) -> None:
        layer = self._next(kv, kv.layer)
        rotary = self._rotary_at(self._position, self._position + 1)
        new = self.decoder.keys_values(layer, self._hidden, rotary)
        for side, one in enumerate(new):
            self._rolling[layer, side, :, :, self._recent] = one[:, :, 0]
        read: Data = inputs[0]
        stored = self._units.side_by_side(self._brought(kv, read))
        if not 0 <= kv.recent <= self._recent:
            raise KvferryError(f"{kv.recent} recent tokens are to be attended, {self._recent} are in memory")
        recent = self._rolling[layer, :, :, :, self._recent - kv.recent : self._recent + 1]
        keys, values = (torch.cat(pair, dim=2) for pair in zip(stored, recent, strict=True))
        read.release()
        # Query heads that share a key head are the queries of one: nothing has to be repeated for each.
        queries = self.decoder.queries(layer, self._hidden, rotary)[:, :, 0].unflatten(1, (keys.shape[1], -1))
        attended = F.scaled_dot_product_attention(queries, keys, values)
        self._attended = attended.flatten(1, 2)[:, :, None]

    def _brought(self, kv: Attended, read: Data) -> torch.Tensor:
        """Units [rows, k, *shape]: those that were read, put into their slots where there are any, and those that lay
        there already."""
        came = self._units.unpacked(read.rows()).to(self.decoder.device)
        if kv.slots is None or kv.missing is None:
            return came.unflatten(0, (self._units.rows, -1))
        assert self._slots is not None
        slots = torch.from_numpy(kv.slots).to(self._first_slot.device) + self._first_slot
        missing = torch.from_numpy(kv.missing)
        if len(came) != int(missing.sum()):
            raise KvferryError(f"{len(came)} units were read, {int(missing.sum())} are missing")
        if len(came):
            self._slots[kv.layer].index_copy_(0, slots[missing], came)
        return self._slots[kv.layer].index_select(0, slots.flatten()).unflatten(0, slots.shape)

    def _feed_forward(self, layer: int) -> None:
        if self._attended is None:
            raise KvferryError(f"layer {layer} has not attended yet")
        self._hidden = self.decoder.above(layer, self._hidden, self._attended)
        self._attended = None
        self._depth += 1

    def _say(self, op: OutputHead) -> Written | None:
        """The next token of every sequence; when a group is complete, its KV of all layers."""
        if self._depth != self.decoder.layers:
            raise KvferryError(f"the hidden state has passed {self._depth} of {self.decoder.layers} layers")
        said = len(self.answers[0])
        if said:
            self._recent += 1
        written = None
        if op.complete is not None:
            written = self._complete()
        logits = self.decoder.logits(self._hidden[:, -1])
        self._listen(logits)
        tokens = logits.argmax(-1) if self._follow is None else self._follow[:, said]
        for answer, token in zip(self.answers, tokens.tolist(), strict=True):
            answer.append(token)
        self._hidden, self._depth = self.decoder.embed(tokens[:, None]), 0
        self._position += 1
        return written

    def _complete(self) -> Written:
        if self._recent != self._units.group_tokens:
            raise KvferryError(f"a group of {self._units.group_tokens} tokens is not complete with {self._recent}")
        if self._keys is not None:
            for layer in range(self.decoder.layers):
                self._keys.append(layer, self._rolling[layer, 0])
        self._recent = 0
        return Written(self._units.packed([self._units.units(*layer) for layer in self._rolling]))

    def _next(self, what: object, layer: int | None) -> int:
        if layer != self._depth:
            raise KvferryError(f"{type(what).__name__} of layer {layer}: the hidden state stands below {self._depth}")
        return layer

    def _rotary_at(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._rotary
        return cos[:, :, begin:end], sin[:, :, begin:end]
