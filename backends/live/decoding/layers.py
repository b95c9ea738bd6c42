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
from kvferry.backends.live.decoding.cluster_blocks import ClusterBlocks
from kvferry.backends.live.decoding.cluster_format import ClusterFormat
from kvferry.backends.live.decoding.entry_log import ClusterLog, EntryLog
from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.indexes.retrieval_head import RetrievalHeadKeys
from kvferry.backends.live.decoding.noted_keys import NotedKeys
from kvferry.backends.live.decoding.projected import Projected
from kvferry.backends.live.decoding.rebuilt_keys import RebuiltKeys
from kvferry.backends.live.decoding.tiers import KvTiers, left, memory_of
from kvferry.backends.live.decoding.written import Written
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.backends.live.quality.attended_tokens import AttendedTokens
from kvferry.disk.direct_storage import Data
from kvferry.disk.kv_log import KvLog
from kvferry.machine.answers import Answer, Assigned, Selection
from kvferry.machine.ops import (
    Assign,
    Bookkeep,
    Cluster,
    DecodeAttention,
    Decompose,
    Extents,
    FeedForward,
    Op,
    OutputHead,
    PrefillLayer,
    ProjectKv,
    ProjectQ,
    Reconstruct,
    RestOfLayer,
    Retrieve,
    Select,
    Selecting,
    Split,
)
from kvferry.model.decoder import Rotary
from kvferry.model.decoders import decoder_of
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces.cluster_answers import Place, place_of

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
        self._index, self._known, self._noted, self._noted_tokens = index, known, noted, attended
        self._prompts = decoder.token_ids(prompts)
        if index is not None:
            index.read(self._prompts)
        self._context = self._prompts.shape[1]
        self._rotary = decoder.rotary(self._context + output)
        self.blocks: StoredBlocks | ClusterBlocks
        told = {"layers": layout.layers, "rows": layout.rows, "context": self._context}
        if isinstance(format, ClusterFormat):
            of_clusters = None if log is None else ClusterLog(log, **told)
            self.blocks = ClusterBlocks(format, device=decoder.device, log=of_clusters)
        else:
            rebuilt = None
            if rebuilt_rank is not None:
                more = {"device": decoder.device, "rotary_in": decoder.rotary_in}
                rebuilt = RebuiltKeys(format, rebuilt_rank, self._rotary, **more)
            self.blocks = StoredBlocks(
                format,
                context=self._context,
                device=decoder.device,
                slots=slots,
                rebuilt=rebuilt,
                log=None if log is None else EntryLog(log, **told),
                upload=None if tiers is None else tiers.upload,
            )
        self._tiers = tiers
        self._answers = Answers(len(prompts), follow, listen)
        # The token that is decoded now.
        self._position = self._context - 1
        self._hidden = decoder.embed(self._prompts)
        self._attended: torch.Tensor | None = None
        # The next layer's, if it was projected.
        self._projected: Projected | None = None
        self._depth = 0
        # Step after step, layer after layer, or one for all layers.
        self.chosen: list[Selection] = []
        self._choosing: set[int] = set()
        # Answers about clusters.
        self.said: dict[Place, Answer] = {}
        if tiers is not None:
            tiers.settle()  # all of this was made on another stream than the ones that use it

    @property
    def answers(self) -> list[list[int]]:
        """Returns the token ids said so far, by sequence."""
        return self._answers.tokens

    @property
    def choosing(self) -> int:
        return len(self._choosing)

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
        layer = self._next(op, op.layer)
        prefilled = self._prefilled(op, inputs)
        self._hidden = prefilled.hidden
        self._depth += 1
        if self._noted is not None:
            self._noted.put(layer, prefilled.queries, prefilled.keys)
        order = None
        if self._index is not None:
            whole = self._context - self.blocks.recent
            order = self._index.prefill(layer, prefilled.queries, prefilled.keys[:, :, :whole])
        return left(self.blocks.prefilled(layer, prefilled.keys, prefilled.values, order), op.stays, self._tiers)

    def _prefilled(self, op: PrefillLayer, inputs: Sequence[Any]) -> PrefilledLayer:
        if self._known is not None:
            return self._known(self._depth)
        return prefill_layer(self.decoder, self._depth, self._hidden, self._rotary_at(0, self._context))

    @runs(Decompose)
    def _decompose(self, op: Decompose, inputs: Sequence[Any]) -> None:
        self._rebuildable(op).decompose(op.layer)

    @runs(Select)
    def _select(self, op: Select, inputs: Sequence[Any]) -> Selection:
        """Chooses with the hidden state below some layer in place of the one below `op.layer`."""
        index = self._indexed(op)
        return self._choose(op, index, index.scores(op.layer, self._queries(op.layer), op.heads))

    @runs(Retrieve)
    def _retrieve(self, op: Retrieve, inputs: Sequence[Any]) -> Selection:
        """Chooses by the token's id, before the first layer computes."""
        self._next(op, op.layer)
        head = self._indexed(op)
        if not isinstance(head, RetrievalHeadKeys):
            raise KvferryError("one choice for all layers takes a retrieval head")
        return self._choose(op, head, head.shares(op.heads))

    def _indexed(self, op: Selecting) -> Index:
        """Returns the index, which has enough to choose from."""
        if self._index is None:
            raise KvferryError("nothing can be selected without an index")
        blocks = self._index.blocks(op.layer)
        if op.k > blocks:
            raise KvferryError(f"{op.k} groups are to be selected, {blocks} are on storage")
        return self._index

    def _choose(self, op: Selecting, index: Index, scores: torch.Tensor) -> Selection:
        best, ids = scores.topk(op.k, dim=-1)
        if not index.spec.clusters:
            # In the order of the file, which is the order of reading and of entering the reuse buffer.
            ids, order = ids.sort(-1)
            best = best.gather(-1, order)
        selection = Selection(ids.to(torch.int32).cpu().numpy(), scores=best.float().cpu().numpy())
        if isinstance(op, Select) and index.spec.clusters:
            self.said[place_of(op)] = selection
        else:
            self.chosen.append(selection)
            self._choosing.add(op.layer)
        return selection

    @runs(ProjectQ)
    def _project(self, op: ProjectQ, inputs: Sequence[Any]) -> None:
        """The layer's query of the token under way, for what comes before the rest of the layer."""
        layer = self._next(op, op.layer)
        self._projected = Projected(layer, self.decoder.queries(layer, self._hidden, self._rotary_now), None)

    @runs(ProjectKv)
    def _project_kv(self, op: ProjectKv, inputs: Sequence[Any]) -> None:
        layer = self._next(op, op.layer)
        if self._projected is None or self._projected.layer != layer:
            raise KvferryError(f"{op.label} of layer {layer}: its query has not been projected")
        new = self.decoder.keys_values(layer, self._hidden, self._rotary_now)
        self._projected = self._projected._replace(keys_values=new)

    @runs(Assign)
    def _assign(self, op: Assign, inputs: Sequence[Any]) -> Assigned:
        index = self._centroids
        if self._projected is None or self._projected.layer != op.layer or self._projected.keys_values is None:
            raise KvferryError(f"{op.label} of layer {op.layer}: its keys have not been projected")
        self.said[place_of(op)] = assigned = Assigned(*index.nearest(op.layer, self._projected.keys_values[0]))
        return assigned

    @runs(Cluster)
    def _cluster(self, op: Cluster, inputs: Sequence[Any]) -> Clustered:
        found = self._clusters.clustered(op, self._read_for(op, inputs), self._centroids)
        self.said[place_of(op)] = said = Clustered(found.tokens, found.variances, found.labels, found.retrieved)
        if self._noted_tokens is not None:
            self._noted_tokens.clustered(op, said)
        return found

    @runs(Split)
    def _split(self, op: Split, inputs: Sequence[Any]) -> SplitParts:
        self.said[place_of(op)] = parts = self._clusters.split(op, self._read_for(op, inputs), self._centroids)
        if self._noted_tokens is not None:
            self._noted_tokens.split(op, parts)
        return parts

    def _read_for(self, op: Cluster | Split, inputs: Sequence[Any]) -> Data | None:
        """Returns clusters that were read for this op, or lie in the processor's own memory."""
        if op.at is not None:
            return self._own(op.at)
        return next((one for one in inputs if isinstance(one, Data)), None)

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
        layer = self._next(op, kv.layer)
        projected = self._projected
        known = None if projected is None or projected.layer != layer else projected.keys_values
        new = known or self.decoder.keys_values(layer, self._hidden, self._rotary_now)
        self._put(layer, *new)
        brought = inputs[0] if kv.at is None else self._own(kv.at)
        if kv.swaps:
            swapped = None if kv.swapped is None else inputs[1]
            keys, values, there = self._clusters.attended(kv, brought, swapped)
        else:
            keys, values, there = self.blocks.attended(kv, brought)
        if self._noted_tokens is not None:
            self._noted_tokens.attended(kv, self._position, self.blocks.recent or kv.recent)
        # Query heads that share a key head are the queries of one: nothing has to be repeated for each.
        queries = self._queries(layer)
        if self._noted is not None:
            self._noted.put(layer, queries, new[0])
        queries = queries[:, :, 0].unflatten(1, (keys.shape[1], -1))
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=there)
        self._attended = attended.flatten(1, 2)[:, :, None]
        if self._index is not None and kv.ids is not None:
            self._index.attended(layer, kv.ids, queries, keys)

    def _put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.blocks.put(layer, keys, values)

    @runs(FeedForward)
    def _feed_forward(self, op: FeedForward, inputs: Sequence[Any]) -> None:
        self._pass_on(self._next(op, op.layer))

    @runs(RestOfLayer)
    def _rest(self, op: RestOfLayer, inputs: Sequence[Any]) -> None:
        layer = self._next(op, op.layer)
        if self._projected is None or self._projected.layer != layer:
            raise KvferryError(f"{op.label} of layer {layer}: it has not been projected")
        self._projected = None
        self._pass_on(layer)

    def _pass_on(self, layer: int) -> None:
        if self._attended is None:
            raise KvferryError(f"layer {layer} has not attended yet")
        self._hidden = self.decoder.above(layer, self._hidden, self._attended)
        self._attended = None
        self._depth += 1

    @runs(OutputHead)
    def _say(self, op: OutputHead, inputs: Sequence[Any]) -> Written | None:
        """Returns the next token of every sequence; when a KV block is complete, its KV of all layers."""
        if self._depth != self.decoder.layers:
            raise KvferryError(f"the hidden state has passed {self._depth} of {self.decoder.layers} layers")
        written = None
        # The first token comes from the prompts, whose KV is there.
        if self.answers[0]:
            written = left(self.blocks.grown(op, self._index), op.stays, self._tiers)  # type: ignore[arg-type]
            if self._noted_tokens is not None:
                self._noted_tokens.grown(op.joined)
        said = self._answers.say(self.decoder.logits(self._hidden[:, -1]), range(len(self.answers)))
        if self._index is not None:
            self._index.read(said[:, None])
        self._hidden, self._depth = self.decoder.embed(said[:, None]), 0
        self._position += 1
        return written

    # --- what they share -----------------------------------------------------------------------------------------

    def _queries(self, layer: int) -> torch.Tensor:
        """Returns the queries of the token under way in a layer. Where the token has not come so far, its present
        hidden state stands in for the one below that layer."""
        if self._projected is not None and self._projected.layer == layer:
            return self._projected.queries
        return self.decoder.queries(layer, self._hidden, self._rotary_now)

    def _own(self, at: Extents) -> Data:
        """Returns what lies in the processor's own memory."""
        return memory_of(self._tiers).device.read(at)

    @property
    def _centroids(self) -> Centroids:
        if not isinstance(self._index, Centroids):
            raise KvferryError("keys belong to clusters only where an index keeps their centroids")
        return self._index

    @property
    def _clusters(self) -> ClusterBlocks:
        if not isinstance(self.blocks, ClusterBlocks):
            raise KvferryError("KV blocks are no clusters")
        return self.blocks

    def _rebuildable(self, op: Op) -> StoredBlocks:
        if isinstance(self.blocks, ClusterBlocks):
            raise InputError(f"{op.label}: keys of clusters are not rebuilt")
        return self.blocks

    @property
    def _rotary_now(self) -> Rotary:
        """Returns the rotary embedding of the token under way."""
        return self._rotary_at(self._position, self._position + 1)

    def _next(self, op: Op, layer: int | None) -> int:
        if layer != self._depth:
            raise KvferryError(f"{op.label} of layer {layer}: the hidden state stands below {self._depth}")
        return layer

    def _rotary_at(self, begin: int, end: int) -> Rotary:
        cos, sin = self._rotary
        return cos[:, :, begin:end], sin[:, :, begin:end]
