"""Runs the layers of a model for a lock-step batch whose KV lies in a file: ops, carried out on real tensors.

What to choose is an index's business, where KV blocks lie that of the blocks; here is the hidden state.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.answers import Answers, Listener
from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.blocks import StoredBlocks, Written
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.rebuilt_keys import RebuiltKeys
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.machine.ops import (
    Bookkeep,
    DecodeAttention,
    Decompose,
    FeedForward,
    Op,
    OutputHead,
    PrefillLayer,
    Reconstruct,
    Select,
    Selection,
)
from kvferry.model.decoder import Decoder
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.specs.errors import InputError, KvferryError

# What prompts leave in a layer, known without computing it.
KnownPrefill = Callable[[int], PrefilledLayer]


class Layers(RegisteredOps):
    """A lock-step batch of prompts of equal length, layer by layer. One thread calls `run`.

    `index` is empty, and None where everything is read. `slots` per row of each layer's reuse buffer, 0: none.
    `rebuilt_rank`: numbers per token from which keys are rebuilt; None where the file has them. `follow`
    [sequences][tokens] are said instead of what the model would say. `known` is taken instead of computing the prompts.
    Raises InputError for prompts that do not fit the layout.
    """

    about = "decoding with KV on storage"

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        format: BlockFormat,
        *,
        output: int,
        slots: int = 0,
        index: Index | None = None,
        rebuilt_rank: int | None = None,
        follow: Sequence[Sequence[int]] | None = None,
        listen: Listener = lambda logits: None,
        known: KnownPrefill | None = None,
    ) -> None:
        self.decoder = decoder = Decoder(model)
        layout = format.layout
        lengths = {len(prompt) for prompt in prompts}
        if len(prompts) != layout.sequences or len(lengths) != 1:
            raise InputError(
                f"{layout.sequences} prompts of one length decode together, "
                f"not {len(prompts)} of {', '.join(map(str, sorted(lengths)))} tokens"
            )
        if (decoder.heads, decoder.layers) != (format.kv_heads, layout.layers):
            raise InputError(
                f"the layout has {layout.layers} layers and {format.kv_heads} KV heads, "
                f"the model {decoder.layers} and {decoder.heads}"
            )
        self._index, self._known = index, known
        self._prompts = decoder.token_ids(prompts)
        self._context = self._prompts.shape[1]
        self._rotary = decoder.rotary(self._context + output)
        rebuilt = None
        if rebuilt_rank is not None:
            rebuilt = RebuiltKeys(format, rebuilt_rank, self._rotary, device=decoder.device)
        self.blocks = StoredBlocks(format, context=self._context, device=decoder.device, slots=slots, rebuilt=rebuilt)
        self._answers = Answers(len(prompts), follow, listen)
        # Of the token whose turn it is.
        self._position = self._context - 1
        self._hidden = decoder.embed(self._prompts)
        self._attended: torch.Tensor | None = None
        # Layers that the hidden state has passed.
        self._depth = 0
        # int32[sequences, heads, k], step after step, layer after layer.
        self.chosen: list[torch.Tensor] = []

    @property
    def answers(self) -> list[list[int]]:
        """Token ids said so far, by sequence."""
        return self._answers.tokens

    @property
    def metadata_bytes(self) -> int:
        """What choosing KV blocks takes in memory, and keys that are rebuilt."""
        return self.blocks.key_bytes + (self._index.n_bytes if self._index else 0)

    @property
    def buffer_bytes(self) -> int:
        """What reuse buffers and rolling buffers take."""
        return self.blocks.n_bytes

    @torch.no_grad()
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Raises InputError for ops that it does not have, KvferryError for one out of turn."""
        sequences = len(self.answers)
        if getattr(op, "batch", sequences) != sequences:
            raise KvferryError(f"{op.label} of a batch of {op.batch}, there are {sequences} prompts")  # type: ignore[attr-defined]
        return self.method_of(op)(op, inputs)

    # --- ops -----------------------------------------------------------------------------------------------------

    @runs(PrefillLayer)
    def _prefill(self, op: PrefillLayer, inputs: Sequence[Any]) -> Written:
        layer = self._next(op, op.layer)
        prefilled = self._prefilled(layer)
        self._hidden = prefilled.hidden
        self._depth += 1
        if self._index is not None:
            whole = self._context - self.blocks.recent
            self._index.prefill(layer, prefilled.queries, prefilled.keys[:, :, :whole])
        return self.blocks.prefilled(layer, prefilled.keys, prefilled.values)

    def _prefilled(self, layer: int) -> PrefilledLayer:
        if self._known is not None:
            return self._known(layer)
        return prefill_layer(self.decoder, layer, self._hidden, self._rotary_at(0, self._context))

    @runs(Decompose)
    def _decompose(self, op: Decompose, inputs: Sequence[Any]) -> None:
        self.blocks.decompose(op.layer)

    @runs(Select)
    def _select(self, op: Select, inputs: Sequence[Any]) -> Selection:
        """The hidden state below some layer stands in for the one below `op.layer`, of which it is the input."""
        if self._index is None:
            raise KvferryError("nothing can be selected without an index")
        blocks = self._index.blocks(op.layer)
        if op.k > blocks:
            raise KvferryError(f"{op.k} groups are to be selected, {blocks} are on storage")
        queries = self.decoder.queries(op.layer, self._hidden, self._rotary_at(self._position, self._position + 1))
        scores = self._index.scores(op.layer, queries, op.heads)
        # In the order of the file, which is the order of reading and of entering the reuse buffer.
        ids = scores.topk(op.k, dim=-1).indices.sort(-1).values.to(torch.int32).cpu()
        self.chosen.append(ids)
        return Selection(ids.numpy())

    @runs(Bookkeep)
    def _bookkeep(self, op: Bookkeep, inputs: Sequence[Any]) -> None:
        """It takes its time where the pipeline looks up; nothing is left to be run."""

    @runs(Reconstruct)
    def _rebuild(self, op: Reconstruct, inputs: Sequence[Any]) -> None:
        self.blocks.rebuild(op.kv)

    @runs(DecodeAttention)
    def _attend(self, op: DecodeAttention, inputs: Sequence[Any]) -> None:
        kv = op.kv
        if kv is None:
            raise KvferryError(f"{op.label} does not say which KV it attends to")
        layer = self._next(op, kv.layer)
        rotary = self._rotary_at(self._position, self._position + 1)
        self.blocks.put(layer, *self.decoder.keys_values(layer, self._hidden, rotary))
        keys, values = self.blocks.attended(kv, inputs[0])
        # Query heads that share a key head are the queries of one: nothing has to be repeated for each.
        queries = self.decoder.queries(layer, self._hidden, rotary)[:, :, 0].unflatten(1, (keys.shape[1], -1))
        attended = F.scaled_dot_product_attention(queries, keys, values)
        self._attended = attended.flatten(1, 2)[:, :, None]

    @runs(FeedForward)
    def _feed_forward(self, op: FeedForward, inputs: Sequence[Any]) -> None:
        layer = self._next(op, op.layer)
        if self._attended is None:
            raise KvferryError(f"layer {layer} has not attended yet")
        self._hidden = self.decoder.above(layer, self._hidden, self._attended)
        self._attended = None
        self._depth += 1

    @runs(OutputHead)
    def _say(self, op: OutputHead, inputs: Sequence[Any]) -> Written | None:
        """The next token of every sequence; when a KV block is complete, its KV of all layers."""
        if self._depth != self.decoder.layers:
            raise KvferryError(f"the hidden state has passed {self._depth} of {self.decoder.layers} layers")
        if self.answers[0]:
            self.blocks.grown()
        written = self._complete() if op.complete is not None else None
        said = self._answers.say(self.decoder.logits(self._hidden[:, -1]), range(len(self.answers)))
        self._hidden, self._depth = self.decoder.embed(said[:, None]), 0
        self._position += 1
        return written

    def _complete(self) -> Written:
        written, keys = self.blocks.completed()
        if self._index is not None:
            for layer, of_layer in enumerate(keys):
                self._index.append(layer, of_layer)
        return written

    def _next(self, op: Op, layer: int | None) -> int:
        if layer != self._depth:
            raise KvferryError(f"{op.label} of layer {layer}: the hidden state stands below {self._depth}")
        return layer

    def _rotary_at(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._rotary
        return cos[:, :, begin:end], sin[:, :, begin:end]
