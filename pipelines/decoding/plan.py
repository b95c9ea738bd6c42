"""From a named way of decoding with KV on storage to its sizes on one model, context, batch and budget."""

import math
from dataclasses import dataclass, field, replace

from kvferry.policies.decode.grouping import Grouping, KvShape, buffer_bytes, metadata_bytes, rank_of, room_tokens
from kvferry.policies.decode.index import IndexSpec, Scores
from kvferry.policies.decode.layout import Layout
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec

# KV blocks of a run, over all layers, sequences and heads: their places are kept in memory, some bytes each.
MOST_UNITS = 200_000_000
# KVSwap 4.3: the most that keys are compressed.
MOST_COMPRESSION = 32.0


@dataclass(frozen=True, kw_only=True)
class DecodePolicy:
    """How a system decodes with its KV on storage. What is None follows from budget and storage.

    ``group_tokens``: consecutive tokens read as one unit; None: as many as make a good read of the storage.
    ``selected_tokens``: None reads them all. ``per_head``: every KV head selects and reads for itself.
    ``values_only``: keys stay in memory, compressed, and are rebuilt. ``ahead``: the next layer's units are predicted
    and read while this one computes. ``reuse``: units read are kept in ``slots``. ``compression``: of the keys that are
    scored; None: as little as ``metadata_share`` of the budget allows. ``landmarks``: one mean key per group is scored
    instead of all keys. ``index`` and ``scores``: what is scored, and how heads that choose together
    agree, as IndexSpec has them. ``tuned``: a file of ``kvferry tune``, whose nearest solution replaces what it holds.
    """

    group_tokens: int | None = None
    selected_tokens: int | None = 400
    per_head: bool = False
    values_only: bool = False
    ahead: bool = True
    reuse: bool = True
    slots: int | None = None
    compression: float | None = MOST_COMPRESSION
    metadata_share: float = 1.0
    landmarks: bool = False
    index: str = "low-rank-keys"
    scores: Scores = "summed"
    rolling: bool = True
    tuned: str | None = None

    @property
    def tokens_per_group(self) -> int:
        """Of a plan's policy, which is settled."""
        assert self.group_tokens is not None
        return self.group_tokens

    @property
    def fixed(self) -> bool:
        """Takes the memory that it takes, whatever the budget."""
        return self.compression is not None and not (self.reuse and self.slots is None)


@dataclass(frozen=True, kw_only=True)
class DecodePlan:
    """The sizes of one run, per sequence unless said otherwise."""

    policy: DecodePolicy
    shape: KvShape
    sequences: int
    context: int
    output: int
    # Units: a group's tokens, of one head or of all.
    heads: int
    units: int
    selected: int | None
    slots: int
    # Width of the compressed keys over all heads, and of those that are scored.
    rank: int
    scored_rank: int
    metadata_bytes: float
    buffer_bytes: float
    layout: Layout = field(compare=False)
    # The KV lies in a file that is mapped into memory, of which so many bytes may be in memory, of the whole batch;
    # None: the file is read past the page cache.
    mapped_bytes: float | None = None

    @property
    def index(self) -> IndexSpec | None:
        """What is kept to choose KV blocks with; None: everything is read."""
        if self.selected is None:
            return None
        policy = self.policy
        kind = "landmarks" if policy.landmarks else policy.index
        return IndexSpec(
            kind=kind, heads=self.heads, rank=self.scored_rank, block_tokens=self.group_tokens, scores=policy.scores
        )

    @property
    def rebuilt_rank(self) -> int | None:
        """Numbers per token from which keys are rebuilt, all heads together; None: keys lie in the file too."""
        return self.rank if self.policy.values_only else None

    @property
    def group_tokens(self) -> int:
        return self.policy.tokens_per_group

    @property
    def memory_bytes(self) -> float:
        return self.metadata_bytes + self.buffer_bytes

    def selected_of(self, stored: int) -> int:
        """How many units are selected once so many are stored: more than at first where a selection takes all."""
        assert self.policy.selected_tokens is not None
        return min(-(-self.policy.selected_tokens // self.policy.tokens_per_group), stored)

    def keys_of(self, stored: int) -> int:
        """How many keys are scored once so many units are stored."""
        return stored if self.policy.landmarks else stored * self.policy.tokens_per_group

    @property
    def units_per_selection(self) -> int:
        """Units that one sequence selects in one layer, over all heads."""
        return self.heads * (self.units if self.selected is None else self.selected)


def shape_of(model: ModelSpec) -> KvShape:
    return KvShape(
        layers=model.layers, kv_heads=model.kv_heads, head_dim=model.head_dim, value_bytes=model.kv_value_bytes
    )


def plan_of(
    policy: DecodePolicy,
    model: ModelSpec,
    *,
    sequences: int,
    context: int,
    output: int,
    budget_bytes: float,
    good_read_bytes: float = 16384,
    block_bytes: int = 512,
    budget_key: str = "budget",
) -> DecodePlan:
    """Raises InputError when a group is longer than the context, or the budget (bytes per sequence, said by
    `budget_key`) is too small for anything; it says the smallest that works."""
    shape = shape_of(model)
    if policy.group_tokens is None:
        fitting = min(context, max(1, int(good_read_bytes // shape.entry_bytes)))
        policy = replace(policy, group_tokens=1 << fitting.bit_length() - 1)
    group = policy.tokens_per_group
    if group < 1 or (policy.selected_tokens is not None and policy.selected_tokens < 1):
        raise InputError(
            f"policies: a selection has 1 group of 1 token at least, not {policy.selected_tokens} tokens in groups of"
            f" {group}"
        )
    if group > context:
        raise InputError(
            f"policies.group_tokens: a group of {group:,} tokens is longer than the context of {context:,}"
        )
    heads = shape.kv_heads if policy.per_head else 1
    tokens = room_tokens(context, output, group)
    units = tokens // group
    in_context = context // group
    all_units = shape.layers * sequences * heads * units
    if all_units > MOST_UNITS:
        what = f"{all_units:,} groups of {group:,} tokens over layers, sequences and heads"
        raise InputError(f"workload.context: makes {what}; at most {MOST_UNITS:,} will do")
    # A context shorter than what would be selected is read whole.
    selected = None if policy.selected_tokens is None else min(-(-policy.selected_tokens // group), in_context)
    # Of one unit, all its heads; what is read of it, per head.
    unit_bytes = group * shape.entry_bytes // (2 if policy.values_only else 1)
    if unit_bytes < heads:
        raise InputError(
            f"policies.group_tokens: the values of {group:,} tokens take less than a byte; more tokens would"
        )
    compression, landmark_bytes = _compression(policy, shape, tokens, units, budget_bytes)
    metadata = 0.0 if selected is None else landmark_bytes + metadata_bytes(compression, tokens, shape)
    slots, buffers = 0, 2.0 * tokens * shape.entry_bytes
    if selected is not None:
        # Where a selection takes all, it grows with what is decoded.
        most = min(-(-policy.selected_tokens // group), units) if policy.selected_tokens else selected
        try:
            base = Grouping(group_tokens=group, compression=compression, groups=most)
            slots = _slots(policy, base, shape, budget_bytes - metadata)
            held = Grouping(group_tokens=group, compression=compression, groups=most, slots=slots)
        except ValueError as error:
            raise InputError(f"policies: {error}") from None
        buffers = buffer_bytes(held, shape)
        smallest = metadata_bytes(max(compression, MOST_COMPRESSION), tokens, shape) + buffer_bytes(base, shape)
        if metadata + buffers > budget_bytes:
            least = max(smallest, metadata + buffers)
            what = f"{_counted(selected, 'group')} of {_counted(group, 'token')}"
            would = f"{_size(least, up=True)} would (a full cache takes {_size(shape.full_bytes(context))})"
            raise InputError(f"{budget_key}: {_size(budget_bytes)} per sequence hold no selection of {what}; {would}")
    rank = rank_of(compression, shape)
    return DecodePlan(
        policy=policy,
        shape=shape,
        sequences=sequences,
        context=context,
        output=output,
        heads=heads,
        units=in_context,
        selected=selected,
        slots=slots,
        rank=rank,
        scored_rank=shape.key_width if policy.landmarks else rank,
        metadata_bytes=metadata,
        buffer_bytes=buffers,
        layout=Layout(
            layers=shape.layers,
            sequences=sequences,
            units=units,
            unit_bytes=unit_bytes // heads,
            heads=heads,
            block_bytes=block_bytes,
        ),
    )


def _size(n_bytes: float, up: bool = False) -> str:
    """In the largest unit of which there is one; to a tenth, or the next tenth."""
    unit, of = next(((unit, of) for unit, of in (("MiB", 2**20), ("KiB", 2**10)) if n_bytes >= of), ("B", 1))
    tenths = math.ceil(10 * n_bytes / of) if up else round(10 * n_bytes / of)
    return f"{tenths / 10:,.{1 if of > 1 else 0}f} {unit}"


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _compression(
    policy: DecodePolicy, shape: KvShape, tokens: int, groups: int, budget_bytes: float
) -> tuple[float, float]:
    """Of the scored or kept keys, and the bytes of landmarks beside them."""
    landmark_bytes = shape.layers * groups * shape.key_width * shape.value_bytes if policy.landmarks else 0.0
    if policy.compression is not None:
        return policy.compression, landmark_bytes
    for_keys = budget_bytes * policy.metadata_share - landmark_bytes
    if policy.selected_tokens is not None and not policy.reuse:
        least = Grouping(
            group_tokens=policy.tokens_per_group,
            compression=1,
            groups=-(-policy.selected_tokens // policy.tokens_per_group),
        )
        for_keys -= buffer_bytes(least, shape)
    rank = int(for_keys / (shape.layers * tokens * shape.value_bytes))
    return shape.key_width / max(1, min(rank, shape.key_width)), landmark_bytes


def _slots(policy: DecodePolicy, base: Grouping, shape: KvShape, left_bytes: float) -> int:
    """Slots of a layer's reuse buffer: what the budget leaves, if that holds a selection."""
    if not policy.reuse:
        return 0
    if policy.slots is not None:
        return policy.slots
    per_slot = shape.layers * base.group_tokens * shape.entry_bytes
    slots = int(left_bytes / per_slot) - 1
    return slots if slots >= base.groups else 0
