"""From a named way of decoding with its KV outside the processor's memory to its sizes on one model, context, batch and
budget."""

import math
from dataclasses import dataclass, replace

from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.head_choice import choosing_heads
from kvferry.policies.decode.latent_cache import latent_faults
from kvferry.policies.decode.residency import DoubleBuffer
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.ledger import Holding
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import shown_size

# KV blocks of a run, over all layers, sequences and heads: their places are kept in memory, some bytes each.
MOST_BLOCKS = 200_000_000


class NoRoom(InputError):
    """What is granted holds no selection, or no sequence."""


def plan_of(
    roles: Roles,
    model: ModelSpec,
    *,
    sequences: int,
    context: int,
    output: int,
    budget_bytes: float,
    good_read_bytes: float = 16384,
    alignment_bytes: int = 512,
    budget_key: str = "budget",
) -> DecodePlan:
    """The sizes that a run has.

    Raises InputError when a group is longer than the context, or the budget (bytes per sequence, under the key
    `budget_key`) is too small for anything; the message has the smallest that works.
    """
    selector = roles.selector
    for role, what in latent_faults(roles) if model.latent else ():
        raise InputError(f"policies.{role}: {what}")
    if len({part.clusters for part in (selector, roles.layout, roles.upkeep)}) > 1:
        raise InputError(
            "policies: clusters take a selector, a layout and an upkeep that are made for them: say"
            " selector: centroids, layout: cluster-pools and upkeep: adaptive-clusters together"
        )
    if roles.residency.swaps and not roles.layout.clusters:
        raise InputError(
            "policies.residency: a virtual cache keeps clusters; say layout: dual-head, or residency: reuse"
        )
    group = roles.layout.block_tokens(context, model.kv_entry_bytes, good_read_bytes)
    if group < 1:
        raise InputError(f"policies.group_tokens: {group}: must be at least 1")
    try:
        roles.upkeep.check()
        least = selector.selected(group, context)
    except ValueError as error:
        raise InputError(f"policies: {error}") from None
    if least is not None and least < 1:
        raise InputError("policies.selected_tokens: must be at least 1")
    if group > context:
        raise InputError(
            f"policies.group_tokens: a group of {group:,} tokens is longer than the context of {context:,}"
        )
    heads = choosing_heads(model) if selector.per_head else 1
    room = Room(
        model=model,
        block_tokens=group,
        context=context,
        output=output,
        budget_bytes=budget_bytes,
        grows=roles.upkeep.grows,
    )
    all_blocks = (1 if selector.for_all_layers else model.layers) * sequences * heads * room.blocks
    if all_blocks > MOST_BLOCKS:
        what = f"{all_blocks:,} groups of {group:,} tokens over layers, sequences and heads"
        raise InputError(f"workload.context: makes {what}; at most {MOST_BLOCKS:,} will do")
    # A context shorter than what would be selected is read whole. Where a selection takes all, it grows with what is
    # decoded.
    selected, most = selector.selected(group, room.context_blocks), selector.selected(group, room.blocks)
    wanted = room.blocks if most is None else most
    residency, needs_bytes = roles.residency, None
    try:
        reserved_bytes = 0.0 if most is None else residency.reserved_bytes(room, wanted)
        keys = _keys(roles, room, reserved_bytes)
        # A residency counts a block of newest tokens by itself.
        newest = roles.upkeep.holdings(room, selected)
        more_bytes = max(0.0, _sum(newest) - model.layers * room.block_bytes)
        left_bytes = budget_bytes - keys.n_bytes - more_bytes
        slots = 0 if most is None else residency.slots_within(room, wanted, left_bytes)
        kept = 0 if most is None else residency.kept_tokens(room)
        if most is not None and residency.keeps and not slots and not kept:
            # Keys as small as they may be leave no room for a selection in every layer: nothing is kept, and they need
            # not make room for it.
            needs_bytes = keys.n_bytes + reserved_bytes
            keys = _keys(roles, room, DoubleBuffer().reserved_bytes(room, wanted))
        layout = roles.layout.layout(room, sequences, heads, alignment_bytes)
        # More slots than a row has blocks would stay empty.
        slots = min(slots, layout.blocks)
    except ValueError as error:
        raise InputError(f"policies: {error}") from None
    room = replace(room, values_alone=keys.rebuilt_rank is not None)
    manages = (*keys.holdings, *residency.holdings(room, wanted, slots), *newest)
    if layout.buffer_bytes:
        manages += (Holding.of("kv: page buffers", layout.buffer_bytes / sequences, "sequence"),)
    if room.values_alone:
        # In two buffers, of the layer that computes and of the next.
        rebuilt_bytes = 2 * wanted * (room.block_bytes - room.read_bytes)
        manages += (Holding.of("kv: rebuilt keys", rebuilt_bytes, "sequence"),)
    if keys.index and keys.index.weight_bytes:
        scored_with = math.ceil((1 + roles.placement.runtime_share) * keys.index.weight_bytes)
        manages += (Holding.of("kv: index weights", scored_with),)
    plan = DecodePlan(
        roles=roles,
        model=model,
        sequences=sequences,
        context=context,
        output=output,
        group_tokens=group,
        heads=heads,
        blocks=room.context_blocks,
        selected=selected,
        index=keys.index.spec if keys.index else None,
        rebuilt_rank=keys.rebuilt_rank,
        slots=slots,
        kept_tokens=kept,
        vector_bytes=0 if keys.index is None else round(keys.index.n_bytes / (model.layers * heads * room.blocks)),
        reuse_needs_bytes=needs_bytes,
        manages=manages,
        beside_layers=keys.index.kv_layers if keys.index else 0.0,
        away_tokens=0 if most is None else residency.away_tokens(room, slots),
        budget_bytes=budget_bytes,
        layout=layout,
    )
    if selected is not None and plan.least_bytes > budget_bytes:
        what = f"{_counted(selected, 'group')} of {_counted(group, 'token')}"
        full = shown_size(model.kv_full_bytes(context))
        would = f"{shown_size(plan.least_bytes, up=True)} would (a full cache takes {full})"
        raise NoRoom(f"{budget_key}: {shown_size(budget_bytes)} per sequence hold no selection of {what}; {would}")
    if layout.moves and "device" in {*plan.tiers, *plan.last_tiers}:
        what = "what lies behind a cluster moves as it grows, which is not modelled in the processor's own memory"
        raise InputError(f"policies.layout: {what}; placement: storage or host, or layout: dual-head, would do")
    return plan.within(budget_bytes)


@dataclass(frozen=True, slots=True)
class _Keys:
    """What of the keys stays in memory: to be scored, and to be rebuilt from."""

    index: Index | None
    rebuilt_rank: int | None
    holdings: tuple[Holding, ...]

    @property
    def n_bytes(self) -> float:
        return _sum(self.holdings)


def _keys(roles: Roles, room: Room, reserved_bytes: float) -> _Keys:
    """Where the budget has room beside `reserved_bytes`. Raises ValueError for parameters that cannot be."""
    index = roles.selector.index(room, reserved_bytes)
    layers = room.model.layers
    # Where a layer's KV is swapped, so are the vectors that it is chosen by.
    index_bytes = index.n_bytes / (layers if roles.residency.swaps else 1) if index else 0.0
    rank = roles.layout.key_rank(room, reserved_bytes + index_bytes)
    keys_bytes = 0 if rank is None else room.key_cache_bytes(rank)
    held = {"kv: index": index_bytes, "kv: low-rank keys": keys_bytes}
    return _Keys(index, rank, tuple(Holding.of(name, size, "sequence") for name, size in held.items() if size))


def _sum(holdings: tuple[Holding, ...]) -> float:
    """Of what does not grow."""
    return sum(one.n_bytes(0) for one in holdings)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
