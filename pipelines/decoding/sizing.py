"""From a named way of decoding with its KV outside the processor's memory to its sizes on one model, context, batch and
budget."""

import math
from dataclasses import dataclass, replace

from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.blocking import ValueGroups
from kvferry.policies.decode.head_choice import choosing_heads
from kvferry.policies.decode.kv_memory import Managed, latent_faults
from kvferry.policies.decode.residency import DoubleBuffer
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.scored_keys import CompressedKeys
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.sizes import Choice, KeySizes, StayingSizes
from kvferry.policies.ledger import Holding, Ledger
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import shown_size

# KV blocks of a run, over all layers, sequences and heads: their places are kept in memory, some bytes each.
MOST_BLOCKS = 200_000_000


class NoRoom(InputError):
    """Raised when the granted memory holds no selection, or no sequence."""


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
    """Returns the sizes that a run has.

    Raises InputError when a group is longer than the context, or the budget (bytes per sequence, under the key
    `budget_key`) is too small for anything; the message has the smallest that works.
    """
    _check_roles(roles, model)
    group = _group_tokens(roles, model, context, good_read_bytes)
    heads = choosing_heads(model) if roles.selector.per_head else 1
    room = Room(
        model=model,
        block_tokens=group,
        context=context,
        output=output,
        budget_bytes=budget_bytes,
        grows=roles.upkeep.grows,
    )
    _check_blocks(roles, room, sequences * heads)
    try:
        sizes = _sizes(roles, room)
        layout = roles.layout.layout(room, sequences, heads, alignment_bytes)
    except ValueError as error:
        raise InputError(f"policies: {error}") from None
    # More slots than a row has blocks would stay empty.
    sizes = replace(sizes, slots=min(sizes.slots, layout.blocks))
    index = sizes.keys.index
    plan = DecodePlan(
        roles=roles,
        model=model,
        sequences=sequences,
        context=context,
        output=output,
        choice=Choice(group_tokens=group, heads=heads, blocks=room.context_blocks, selected=sizes.selected),
        keys=KeySizes(
            index=index.spec if index else None,
            vector_bytes=round(index.n_bytes / (model.layers * heads * room.blocks)) if index else 0,
            rebuilt_rank=sizes.keys.rebuilt_rank,
        ),
        staying=StayingSizes(slots=sizes.slots, tokens=sizes.kept_tokens),
        managed=Managed(
            holdings=_holdings(roles, room, sizes, layout.buffer_bytes / sequences),
            budget_bytes=budget_bytes,
            index_layers=index.kv_layers if index else 0.0,
            away_tokens=roles.residency.away_tokens(room, sizes.slots) if sizes.chooses else 0,
            reuse_needs_bytes=sizes.reuse_needs_bytes,
        ),
        layout=layout,
    )
    _check_fits(plan, layout, budget_key)
    return plan.within(budget_bytes)


def _check_roles(roles: Roles, model: ModelSpec) -> None:
    """Raises InputError for roles that do not go together, or with the model, and for parameters that cannot be."""
    for role, what in latent_faults(roles) if model.latent else ():
        raise InputError(f"policies.{role}: {what}")
    if len({part.clusters for part in (roles.selector, roles.layout, roles.upkeep)}) > 1:
        raise InputError(
            "policies: clusters take a selector, a layout and an upkeep that are made for them: say"
            " selector: centroids, layout: cluster-pools and upkeep: adaptive-clusters together"
        )
    if roles.residency.swaps and not roles.layout.clusters:
        raise InputError(
            "policies.residency: a virtual cache keeps clusters; say layout: dual-head, or residency: reuse"
        )


def _group_tokens(roles: Roles, model: ModelSpec, context: int, good_read_bytes: float) -> int:
    """Returns the tokens of a KV block. Raises InputError where the context has none of that length."""
    group = roles.layout.block_tokens(context, model.kv_entry_bytes, good_read_bytes)
    if group < 1:
        raise InputError(f"policies.group_tokens: {group}: must be at least 1")
    try:
        roles.upkeep.check()
        least = roles.selector.selected(group, context)
    except ValueError as error:
        raise InputError(f"policies: {error}") from None
    if least is not None and least < 1:
        raise InputError("policies.selected_tokens: must be at least 1")
    if group > context:
        raise InputError(
            f"policies.group_tokens: a group of {group:,} tokens is longer than the context of {context:,}"
        )
    return group


def _check_blocks(roles: Roles, room: Room, rows: int) -> None:
    """Raises InputError for more KV blocks than there can be places for."""
    all_blocks = (1 if roles.selector.for_all_layers else room.model.layers) * rows * room.blocks
    if all_blocks > MOST_BLOCKS:
        what = f"{all_blocks:,} groups of {room.block_tokens:,} tokens over layers, sequences and heads"
        raise InputError(f"workload.context: makes {what}; at most {MOST_BLOCKS:,} will do")


@dataclass(frozen=True, slots=True)
class _Keys:
    """The parts of keys that stay in memory: to be scored, and to be rebuilt from."""

    index: Index | None
    rebuilt_rank: int | None
    holdings: tuple[Holding, ...]

    @property
    def n_bytes(self) -> float:
        return Ledger(self.holdings).n_bytes(0)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that the roles choose for a budget. ``selected``: blocks of the context; ``wanted``: of all blocks there
    will be, the number that buffers have room for; ``chooses``: not all are. ``newest``: holdings of new tokens."""

    selected: int | None
    wanted: int
    chooses: bool
    keys: _Keys
    newest: tuple[Holding, ...]
    slots: int
    kept_tokens: int
    reuse_needs_bytes: float | None


def _sizes(roles: Roles, room: Room) -> _Sizes:
    """Raises ValueError for parameters that cannot be."""
    # A context shorter than what would be selected is read whole. Where a selection takes all, it grows with what is
    # decoded.
    selector, residency, needs_bytes = roles.selector, roles.residency, None
    selected = selector.selected(room.block_tokens, room.context_blocks)
    most = selector.selected(room.block_tokens, room.blocks)
    chooses, wanted = most is not None, room.blocks if most is None else most
    reserved_bytes = residency.reserved_bytes(room, wanted) if chooses else 0.0
    keys = _keys(roles, room, reserved_bytes)
    newest = roles.upkeep.holdings(room, selected)
    newest_bytes = Ledger(newest).n_bytes(0)
    left_bytes = room.budget_bytes - keys.n_bytes - newest_bytes
    slots = residency.slots_within(room, wanted, left_bytes) if chooses else 0
    kept_tokens = residency.kept_tokens(room) if chooses else 0
    if chooses and residency.keeps and slots < wanted and not kept_tokens:
        # Keys as small as they may be leave no room for a selection in every layer: they need not make room for it.
        needs_bytes = keys.n_bytes + reserved_bytes
        keys = _keys(roles, room, DoubleBuffer().reserved_bytes(room, wanted))
        slots = residency.slots_within(room, wanted, room.budget_bytes - keys.n_bytes - newest_bytes)
    return _Sizes(selected, wanted, chooses, keys, newest, slots, kept_tokens, needs_bytes)


def _keys(roles: Roles, room: Room, reserved_bytes: float) -> _Keys:
    """Returns the keys that fit into the budget beside `reserved_bytes`. Raises ValueError for impossible
    parameters."""
    index = roles.selector.index(room, reserved_bytes)
    # One layer's part of an index on storage is in memory.
    index_bytes = index.n_bytes / (room.model.layers if roles.residency.index_on_storage else 1) if index else 0.0
    rank = roles.layout.key_rank(room, reserved_bytes + index_bytes)
    keys_bytes = 0 if rank is None else room.key_cache_bytes(rank)
    held = {"kv: index": index_bytes, "kv: low-rank keys": keys_bytes}
    return _Keys(index, rank, tuple(Holding.of(name, size, "sequence") for name, size in held.items() if size))


def _holdings(roles: Roles, room: Room, sizes: _Sizes, page_buffer_bytes: float) -> tuple[Holding, ...]:
    """Returns all that manages KV, from beginning to end."""
    room = replace(room, reads=roles.layout.read_bytes(room))
    found = [*sizes.keys.holdings, *roles.residency.holdings(room, sizes.wanted, sizes.slots), *sizes.newest]
    if page_buffer_bytes:
        found.append(Holding.of("kv: page buffers", page_buffer_bytes, "sequence"))
    found += roles.layout.holdings(room, sizes.wanted)
    if sizes.keys.index and sizes.keys.index.weight_bytes:
        scored_with = math.ceil((1 + roles.placement.runtime_share) * sizes.keys.index.weight_bytes)
        found.append(Holding.of("kv: index weights", scored_with))
    return tuple(found)


def _check_fits(plan: DecodePlan, layout: AnyLayout, budget_key: str) -> None:
    """Raises NoRoom where the budget holds no selection, InputError where the processor's memory cannot have the
    layout."""
    selected, least_bytes, budget_bytes = plan.choice.selected, plan.memory.least_bytes, plan.managed.budget_bytes
    if selected is not None and least_bytes > budget_bytes:
        what = f"{_counted(selected, 'group')} of {_counted(plan.choice.group_tokens, 'token')}"
        if plan.staying.slots > selected:
            what += f" in {plan.staying.slots:,} slots (policies.slots)"
        full = shown_size(plan.model.kv_full_bytes(plan.context))
        would = f"{shown_size(least_bytes, up=True)} would (a full cache takes {full})"
        fit = "; so would policies.compression=fit, with narrower keys that choose worse" if _would_fit(plan) else ""
        raise NoRoom(f"{budget_key}: {shown_size(budget_bytes)} per sequence hold no selection of {what}; {would}{fit}")
    if layout.moves and "device" in {*plan.tiers, *plan.last_tiers}:
        what = "what lies behind a cluster moves as it grows, which is not modelled in the processor's own memory"
        raise InputError(f"policies.layout: {what}; placement: storage or host, or layout: dual-head, would do")


def _would_fit(plan: DecodePlan) -> bool:
    """Returns whether the budget holds a selection where keys are as narrow as can be."""
    held = Ledger(plan.managed.holdings)
    narrow_bytes = plan.memory.least_bytes
    for part, rank, name in (
        (plan.roles.selector, plan.keys.index.rank if plan.keys.index else 1, "kv: index"),
        (plan.roles.layout, plan.keys.rebuilt_rank or 1, "kv: low-rank keys"),
    ):
        if isinstance(part, CompressedKeys | ValueGroups):
            narrow_bytes -= (1 - 1 / rank) * held.of(name).n_bytes(0)
    return narrow_bytes <= plan.managed.budget_bytes


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
