"""What a processor can be asked to do. An op says what, never how long.

Counts may be numpy arrays: a cost model answers with an array, so that a planner prices a context in one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvferry.layouts.pieces import Pieces, Reads
from kvferry.machine.answers import Assigned, Selection
from kvferry.machine.handles import Attended, Batch, Continued, Rebuilt
from kvferry.machine.handles import Chunks as Chunks
from kvferry.machine.handles import Extents as Extents
from kvferry.machine.handles import KvRef as KvRef
from kvferry.machine.op import OPS as OPS
from kvferry.machine.op import Number as Number
from kvferry.machine.op import Op as Op
from kvferry.machine.op import Purpose
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.policies.decode.splits import Clustered, ClusterSplit, Joined, SplitParts

# --- prefill ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefillHead(Op):
    """One KV head of one token chunk through one layer (SparKV IV-B: chunk (t, l, h)).

    Attention over `active_blocks` blocks of 128 queries x 64 keys, and this head's share of the layer's dense
    operators; with `final_layer`, only the projection that emits its K and V (IV-C: t_proj).
    `context_tokens` come before the chunk's own.
    """

    purpose: ClassVar[Purpose] = "computed"

    tokens: Number
    active_blocks: Number
    final_layer: Number = False
    context_tokens: Number = 0


@dataclass(frozen=True, slots=True)
class Project(Op):
    """Emit K and V of one layer for a token chunk, from the hidden state below: no token dependency.

    `kv` says which, for a machine that really does it.
    """

    purpose: ClassVar[Purpose] = "computed"

    tokens: Number
    kv: KvRef | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Advance(Op):
    """The rest of a layer for a token chunk, all heads: attention over every earlier token, then dense.

    `active_blocks` counts the attention blocks over all KV heads, `context_tokens` what comes before the chunk.
    `kv` is the chunk's own KV in the layer that is run.
    """

    purpose: ClassVar[Purpose] = "computed"

    tokens: Number
    active_blocks: Number
    context_tokens: Number = 0
    kv: KvRef | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Prefill(Op):
    """A prompt of `tokens` through all layers and the output head, with `context_tokens` of KV before it. `drafted`:
    tokens (id, text) of an answer that stand so far, and those behind them that a device drafted for a cloud. `batch`:
    so many such prompts in one pass, of these lengths in the mean; modelled alone."""

    purpose: ClassVar[Purpose] = "prefill"

    tokens: Number
    context_tokens: Number
    drafted: tuple[Sequence[Any], Sequence[Any]] | None = field(default=None, compare=False)
    batch: Number = 1


@dataclass(frozen=True, slots=True)
class PrefillLayer(Op):
    """One layer for `batch` prompts of `tokens` each behind `context_tokens` of KV; gives its KV, to be written, or to
    stay in the processor's memory at `stays`. `kernel`: how a modelled machine attends. `window_tokens`: the layer
    attends to no more KV than that; None: all of it."""

    purpose: ClassVar[Purpose] = "prefill"

    batch: Number
    tokens: Number
    layer: int | None = field(default=None, compare=False)
    of: Batch | None = field(default=None, compare=False)
    stays: Extents | None = field(default=None, compare=False)
    kernel: AttentionKernel = AttentionKernel()
    context_tokens: Number = 0
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Decompose(Op):
    """Singular value decomposition of one layer's keys of `tokens` tokens, all KV heads side by side, per sequence.

    A machine that really does it keeps them in memory from then on, at a low rank."""

    purpose: ClassVar[Purpose] = "prefill"

    batch: Number
    tokens: Number
    layer: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Cluster(Op):
    """Make `clusters` clusters of like keys of the `tokens` newest tokens of each row, by k-means; the first of them is
    number `first` of its row. A row is one of `heads` parts of a sequence's KV heads. Yields Clustered. `step` is -1
    for the prompts; the answer says of these which `k` clusters are best for each of the last `references` queries. Of
    all tokens (`whole`), the ones that are not in memory are brought as for a Split."""

    purpose: ClassVar[Purpose] = "updating clusters"
    answer: ClassVar[type[Clustered]] = Clustered

    batch: Number
    tokens: Number
    clusters: Number
    layer: int
    step: int = -1
    heads: int = 1
    first: int = 0
    references: int = 0
    k: int = 0
    whole: bool = False
    at: Extents | None = field(default=None, compare=False)
    reads: Reads | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Decompress(Op):
    """Entropy-decode fetched chunks into `values` key and value numbers."""

    values: Number


# --- decoding, in the order of a layer --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodeStep(Op):
    """One new token per sequence through all layers: `context_tokens` of KV are read for each, in the mean. `kernel`:
    how a modelled machine attends."""

    purpose: ClassVar[Purpose] = "tokens"

    batch: Number
    context_tokens: Number
    of: Batch | None = field(default=None, compare=False)
    # Equal steps are looked up by what differs most.
    kernel: AttentionKernel = field(default=AttentionKernel(), hash=False)


@dataclass(frozen=True, slots=True)
class DecodeRun(Op):
    """`tokens` new tokens of one sequence, one after the other, with `context_tokens` of KV before the first: what so
    many steps of DecodeStep are, where the tokens in between matter to nothing else. `window_tokens`: attention sees
    no more KV than that; None: all of it. `kernel`: how a modelled machine attends."""

    purpose: ClassVar[Purpose] = "tokens"

    tokens: int
    context_tokens: int
    of: Continued | None = field(default=None, compare=False)
    window_tokens: int | None = field(default=None, kw_only=True)
    kernel: AttentionKernel = field(default=AttentionKernel(), kw_only=True)

    @property
    def middle(self) -> DecodeStep:
        """The step that all of them cost as much as, in the mean."""
        if self.window_tokens is None:
            return DecodeStep(1, self.context_tokens + (self.tokens - 1) / 2, kernel=self.kernel)
        growing = min(self.tokens, self.window_tokens - (first := min(self.context_tokens, self.window_tokens)))
        seen = growing * (first + (growing - 1) / 2) + (self.tokens - growing) * self.window_tokens
        return DecodeStep(1, seen / self.tokens, kernel=self.kernel)


@dataclass(frozen=True, slots=True)
class Retrieve(Op):
    """Choose `k` KV blocks for all layers at once, before the pass: a retrieval head projects the new token and scores
    the keys that it keeps of `tokens` tokens per sequence (SpeContext); yields a Selection among `groups`. `paged`: the
    host makes page tables for the pass meanwhile, which are as long whatever is chosen."""

    purpose: ClassVar[Purpose] = "choosing KV"
    answer: ClassVar[type[Selection]] = Selection
    of_block: ClassVar[bool] = True

    batch: Number
    groups: Number
    k: Number
    tokens: Number
    step: int
    heads: int = 1
    paged: bool = False

    @property
    def layer(self) -> int:
        """The entry of a stream of selections that answers for all layers."""
        return 0


@dataclass(frozen=True, slots=True)
class OfLayer:
    """A base of dense operators of one layer for one new token per sequence."""

    purpose: ClassVar[Purpose | None] = "feed-forward and projections"
    of_block: ClassVar[bool] = True

    batch: Number
    layer: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ProjectQ(OfLayer, Op):
    """The Q projection, apart from the rest of the layer."""


@dataclass(frozen=True, slots=True)
class ProjectKv(OfLayer, Op):
    """The K and V projections that go with a ProjectQ before."""


@dataclass(frozen=True, slots=True)
class Select(Op):
    """Choose the `k` groups that the next attention reads, among `groups`; yields a Selection.

    `step` and `layer` tell the machine which entry of a recorded or generated stream to answer with. `heads` choose
    for themselves, one choice for all by default. `keys` vectors of `rank` numbers are scored per sequence, over all
    heads; by default one full key per group.
    """

    purpose: ClassVar[Purpose] = "choosing KV"
    answer: ClassVar[type[Selection]] = Selection
    of_block: ClassVar[bool] = True

    batch: Number
    groups: Number
    k: Number
    step: int
    layer: int
    heads: int = 1
    keys: Number | None = None
    rank: Number | None = None


@dataclass(frozen=True, slots=True)
class Bookkeep(Op):
    """The host's work between a selection and its reads: `blocks` are looked up among `slots` and mapped.

    A machine that really does it takes its time anyway, and has nothing to run.
    """

    purpose: ClassVar[Purpose] = "choosing KV"
    of_block: ClassVar[bool] = True

    blocks: Number
    slots: Number = 0


@dataclass(frozen=True, slots=True)
class Reconstruct(Op):
    """Keys of `tokens` tokens per sequence from a low-rank cache of `rank` numbers each, all KV heads."""

    purpose: ClassVar[Purpose] = "attention"
    of_block: ClassVar[bool] = True

    batch: Number
    tokens: Number
    rank: Number
    kv: Rebuilt | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Assign(Op):
    """Find the nearest of `centroids` for the new key of each of `heads` parts of the KV heads; yields Assigned."""

    purpose: ClassVar[Purpose] = "updating clusters"
    answer: ClassVar[type[Assigned]] = Assigned
    of_block: ClassVar[bool] = True

    batch: Number
    centroids: Number
    step: int
    layer: int
    heads: int = 1


@dataclass(frozen=True, slots=True)
class Split(Op):
    """Split clusters of one layer in two, by 2-means over the `tokens` keys that they hold together; yields SplitParts.

    `tokens` count the ones that waited for it in memory, and new keys that join. All of it is in memory: brought for
    this layer's attention, or by the read that the op comes after, or `at` its place in the processor's own; `reads`
    says where in what is read it is.
    """

    purpose: ClassVar[Purpose] = "updating clusters"
    answer: ClassVar[type[SplitParts]] = SplitParts
    of_block: ClassVar[bool] = True

    batch: Number
    tokens: Number
    step: int
    layer: int
    heads: int = 1
    splits: Sequence[ClusterSplit] = field(default=(), compare=False)
    at: Extents | None = field(default=None, compare=False)
    reads: Reads | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DecodeAttention(Op):
    """Attention of one layer for one new token per sequence, over `attended_tokens` of its KV.

    `gathered`: they lie scattered over buffers and are brought together first. `kernel`: how a modelled machine
    attends.
    """

    purpose: ClassVar[Purpose] = "attention"
    of_block: ClassVar[bool] = True

    batch: Number
    attended_tokens: Number
    gathered: bool = False
    kv: Attended | None = field(default=None, compare=False)
    kernel: AttentionKernel = AttentionKernel()


@dataclass(frozen=True, slots=True)
class FeedForward(OfLayer, Op):
    """All of them. `captured`: the layer's kernels are launched at once with all others of the step, not one by one.
    `routed`: with a mixture's experts; False: RoutedExperts has them."""

    ends_layer: ClassVar[bool] = True

    captured: bool = False
    routed: bool = True


@dataclass(frozen=True, slots=True)
class RoutedExperts(Op):
    """The experts of one layer that one new token per sequence is routed to."""

    purpose: ClassVar[Purpose] = "feed-forward and projections"
    of_block: ClassVar[bool] = True

    batch: Number


@dataclass(frozen=True, slots=True)
class RestOfLayer(OfLayer, Op):
    """What FeedForward is without the projections of a ProjectQ and a ProjectKv before."""

    ends_layer: ClassVar[bool] = True

    captured: bool = False


@dataclass(frozen=True, slots=True)
class OutputHead(Op):
    """From the last layer's hidden state to one new token per sequence.

    `complete` is the group whose last token has passed the layers: a machine that really does it gives its KV, to be
    written. `joined` says by layer, where KV blocks are clusters, which new keys joined them besides those of splits
    (None: they belong to none yet), and `written` which pieces of clusters are to be written then. What of that KV
    stays in the processor's own memory lies there at `stays`. `paged`: the host makes page tables for the token to
    come.
    """

    purpose: ClassVar[Purpose] = "tokens"

    batch: Number
    complete: int | None = field(default=None, compare=False)
    of: Batch | None = field(default=None, compare=False)
    joined: Sequence[Sequence[Joined] | None] = field(default=(), compare=False)
    stays: Extents | None = field(default=None, compare=False)
    written: Pieces | None = field(default=None, compare=False)
    paged: bool = False


# Ops whose answers come from a stream of selections.
Selecting = Select | Retrieve
# What the processor's spans of a Transformer block are called while decoding.
BLOCK_LABELS = tuple(label for label, op in OPS.items() if op.of_block)
