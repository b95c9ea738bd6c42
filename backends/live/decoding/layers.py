"""Runs the layers of a model for a lock-step batch whose KV lies in a file: ops, carried out on real tensors.

What to choose is an index's business, where KV blocks lie that of the blocks; here is the hidden state.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.answers import Answers, Listener, unheard
from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.blocks import StoredBlocks
from kvferry.backends.live.decoding.choices import Choices
from kvferry.backends.live.decoding.cluster_blocks import ClusterBlocks
from kvferry.backends.live.decoding.cluster_format import ClusterFormat
from kvferry.backends.live.decoding.cluster_ops import ClusterOps
from kvferry.backends.live.decoding.entry_log import ClusterLog, EntryLog
from kvferry.backends.live.decoding.hidden_state import HiddenState
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.noted_keys import NotedKeys
from kvferry.backends.live.decoding.rebuilt_keys import RebuiltKeys
from kvferry.backends.live.decoding.tiers import KvTiers, left, memory_of
from kvferry.backends.live.decoding.written import Written
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.backends.live.quality.attended_tokens import AttendedTokens
from kvferry.disk.kv_log import KvLog
from kvferry.machine.ops import (
    Bookkeep,
    DecodeAttention,
    Decompose,
    Op,
    OutputHead,
    PrefillLayer,
    Reconstruct,
)
from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.decoders import decoder_of
from kvferry.model.whole_prefill import PrefilledLayer
from kvferry.specs.errors import InputError, KvferryError

# Gives a layer's KV of the prompts without computing it.
KnownPrefill = Callable[[int], PrefilledLayer]


class Layers(RegisteredOps):
    """A lock-step batch of prompts of equal length, layer by layer. One thread calls `run`.

    `index` is empty, and None where everything is read. `slots` per row of each layer's reuse buffer, 0: none.
    `rebuilt_rank`: numbers per token from which keys are rebuilt; None where the file has them. `follow`
    [sequences][tokens] are said instead of what the model would say. `known` is taken instead of computing the prompts.
    `tiers` is the memory of KV that does not lie on storage; None: all of it does. `noted` gets keys and queries, `log`
    what becomes of the file, `attended` what attention takes in.
    Raises InputError for prompts that do not fit the layout.
    """

    about = "decoding with KV on storage"

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        format: BlockFormat | ClusterFormat,
        *,
        output: int,
        slots: int = 0,
        index: Index | None = None,
        rebuilt_rank: int | None = None,
        follow: Sequence[Sequence[int]] | None = None,
        listen: Listener = unheard,
        known: KnownPrefill | None = None,
        tiers: KvTiers | None = None,
        noted: NotedKeys | None = None,
        log: KvLog | None = None,
        attended: AttendedTokens | None = None,
    ) -> None:
        self.decoder = decoder = decoder_of(model)
        _check(prompts, format, decoder)
        self._index, self._known, self._tiers, self._noted, self._noted_tokens = index, known, tiers, noted, attended
        ids = decoder.token_ids(prompts)
        if index is not None:
            index.read(ids)
        self._context = ids.shape[1]
        rotary = decoder.rotary(self._context + output)
        self.blocks = _blocks(format, decoder, rotary, self._context, slots, rebuilt_rank, tiers, log)
        self._state = HiddenState(decoder, ids, rotary)
        self._answers, self._choices = Answers(len(prompts), follow, listen), Choices(index, self._state)
        # The token ids said so far, by sequence; selections; and answers about clusters.
        self.answers, self.chosen = self._answers.tokens, self._choices.selections
        self.said = self._choices.of_clusters
        clusters = ClusterOps(self.blocks, index, self._state, tiers, self.said, attended)
        self.parts = self._state, self._choices, clusters
        if tiers is not None:
            tiers.settle()  # all of this was made on another stream than the ones that use it

    @property
    def choosing(self) -> int:
        return len(self._choices.layers)

    @property
    def metadata_bytes(self) -> int:
        """Returns what choosing KV blocks takes in memory, rebuilt keys included."""
        return self.blocks.key_bytes + (self._index.n_bytes if self._index else 0)

    @property
    def buffer_bytes(self) -> int:
        """Returns what reuse buffers and rolling buffers take."""
        return self.blocks.n_bytes

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Raises InputError for ops that it does not have, KvferryError for one out of turn."""
        sequences = len(self.answers)
        if getattr(op, "batch", sequences) != sequences:
            raise KvferryError(f"{op.label} of a batch of {op.batch}, there are {sequences} prompts")  # type: ignore[attr-defined]
        return self.method_of(op)(op, inputs)

    # --- ops -----------------------------------------------------------------------------------------------------

    @runs(PrefillLayer)
    def _prefill(self, op: PrefillLayer, inputs: Sequence[Any]) -> Written | None:
        layer = self._state.check(op, op.layer)
        prefilled = self._prefilled(op, inputs)
        self._state.prefilled(prefilled.hidden)
        if self._noted is not None:
            self._noted.put(layer, prefilled.queries, prefilled.keys)
        order = None
        if self._index is not None:
            whole = self._context - self.blocks.recent
            order = self._index.prefill(layer, prefilled.queries, prefilled.keys[:, :, :whole])
        return left(self.blocks.prefilled(layer, prefilled.keys, prefilled.values, order), op.stays, self._tiers)

    def _prefilled(self, op: PrefillLayer, inputs: Sequence[Any]) -> PrefilledLayer:
        return self._state.prefill() if self._known is None else self._known(self._state.depth)

    @runs(Decompose)
    def _decompose(self, op: Decompose, inputs: Sequence[Any]) -> None:
        self._rebuildable(op).decompose(op.layer)

    @runs(Bookkeep)
    def _bookkeep(self, op: Bookkeep, inputs: Sequence[Any]) -> None:
        """Does nothing: the pipeline has looked the KV blocks up already, which is what takes time."""

    @runs(Reconstruct)
    def _rebuild(self, op: Reconstruct, inputs: Sequence[Any]) -> None:
        self._rebuildable(op).rebuild(op.kv)

    @runs(DecodeAttention)
    def _attend(self, op: DecodeAttention, inputs: Sequence[Any]) -> None:
        kv = op.kv
        if kv is None:
            raise KvferryError(f"{op.label} does not say which KV it attends to")
        layer = self._state.check(op, kv.layer)
        new = self._state.keys_values()
        self._put(layer, *new)
        brought = inputs[0] if kv.at is None else memory_of(self._tiers).device.read(kv.at)
        swapped = (inputs[1],) if kv.swaps and kv.swapped is not None else ()
        keys, values, there = self.blocks.attended(kv, brought, *swapped)
        if self._noted_tokens is not None:
            self._noted_tokens.attended(kv, self._state.position, self.blocks.recent or kv.recent)
        # Query heads that share a key head are the queries of one: nothing has to be repeated for each.
        queries = self._state.queries(layer)
        if self._noted is not None:
            self._noted.put(layer, queries, new[0])
        queries = queries[:, :, 0].unflatten(1, (keys.shape[1], -1))
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=there)
        self._state.attended = attended.flatten(1, 2)[:, :, None]
        if self._index is not None and kv.ids is not None:
            self._index.attended(layer, kv.ids, queries, keys)

    def _put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.blocks.put(layer, keys, values)

    @runs(OutputHead)
    def _say(self, op: OutputHead, inputs: Sequence[Any]) -> Written | None:
        """Returns the next token of every sequence; when a KV block is complete, its KV of all layers."""
        logits, written = self._state.logits(), None
        # The first token comes from the prompts, whose KV is there.
        if self.answers[0]:
            written = left(self.blocks.grown(op, self._index), op.stays, self._tiers)  # type: ignore[arg-type]
            if self._noted_tokens is not None:
                self._noted_tokens.grown(op.joined)
        said = self._answers.say(logits, range(len(self.answers)))
        if self._index is not None:
            self._index.read(said[:, None])
        self._state.begin_token(said)
        return written

    def _rebuildable(self, op: Op) -> StoredBlocks:
        if isinstance(self.blocks, ClusterBlocks):
            raise InputError(f"{op.label}: keys of clusters are not rebuilt")
        return self.blocks


def _check(prompts: Sequence[Sequence[int]], format: BlockFormat | ClusterFormat, decoder: Decoder) -> None:
    """Raises InputError unless these prompts, and the model, fit the layout."""
    layout, lengths = format.layout, {len(prompt) for prompt in prompts}
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


def _blocks(
    format: BlockFormat | ClusterFormat,
    decoder: Decoder,
    rotary: Rotary,
    context: int,
    slots: int,
    rebuilt_rank: int | None,
    tiers: KvTiers | None,
    log: KvLog | None,
) -> StoredBlocks | ClusterBlocks:
    device, told = decoder.device, {"layers": format.layout.layers, "rows": format.layout.rows, "context": context}
    if isinstance(format, ClusterFormat):
        return ClusterBlocks(format, device=device, log=None if log is None else ClusterLog(log, **told))
    rebuilt = None
    if rebuilt_rank is not None:
        rebuilt = RebuiltKeys(format, rebuilt_rank, rotary, device=device, rotary_in=decoder.rotary_in)
    return StoredBlocks(
        format,
        context=context,
        device=device,
        slots=slots,
        rebuilt=rebuilt,
        log=None if log is None else EntryLog(log, **told),
        upload=None if tiers is None else tiers.upload,
    )
