"""What the answers of a policy must be: one check for each method of a role, called with the answer and what was asked.

A check gives None for an answer that will do; else what came, and what would do.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.layouts.layout import Layout
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.policies.decode.index import INDEX_KINDS, IndexSpec
from kvferry.policies.decode.key_index import KEY_INDEXES
from kvferry.policies.decode.placement import KvSize
from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.selector import Ask, Index
from kvferry.policies.decode.slot_table import Resident
from kvferry.policies.decode.stages import Stage
from kvferry.policies.decode.upkeep import Kept
from kvferry.policies.ledger import Holding
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import LoadProblem
from kvferry.sim.cost import Cost
from kvferry.specs.tier import Tier

Check = Callable[..., str | None]
_TIERS = get_args(Tier)


def fault_of_cost(cost: Any) -> str | None:
    """Of one op."""
    if isinstance(cost, Cost):
        try:
            if 0 <= cost.duration_s < math.inf and 0 <= cost.n_bytes < math.inf:
                return None
        except (TypeError, ValueError):
            pass
    return f"{_brief(cost)}; a Cost of finite seconds and bytes, none below 0, would do"


def fault_of_durations(found: Any) -> str | None:
    """Of several ops."""
    try:
        numbers = np.asarray(found, float)
    except (TypeError, ValueError):
        numbers = np.array([math.nan])
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= 0))]
    return f"{_brief(found)}; finite seconds, none below 0, would do" if wrong.size else None


def fault_of_plan(plan: Any, problem: LoadProblem) -> str | None:
    """Every unit has to come once, over one of the paths."""
    if not isinstance(plan, Plan):
        return f"{_brief(plan)}; a kvferry.policies.loading.plan.Plan would do"
    times = np.zeros(problem.units, np.int64)
    for stage in plan.stages:
        for units in (stage.compute, stage.stream):
            asked = np.asarray(units if len(units) else (), np.int64 if not len(units) else None)
            if asked.dtype.kind not in "iu" or asked.ndim != 1:
                return f"the units {_brief(units)}; whole numbers would do"
            out = asked[(asked < 0) | (asked >= problem.units)]
            if out.size:
                return f"unit {out[0]}; it is none of 0 to {problem.units - 1}"
            np.add.at(times, asked, 1)
    if (times != 1).any():
        unit = int(np.flatnonzero(times != 1)[0])
        often = f"{times[unit]} times" if times[unit] else "not at all"
        return f"unit {unit} {often}; each of the units 0 to {problem.units - 1} has to come once"
    return None


def _whole(least: int, most: float = math.inf, *, or_none: bool = False) -> Check:
    def check(found: Any, *asked: Any, **named: Any) -> str | None:
        return _fault_of_whole(found, least, most, or_none=or_none)

    return check


def _fault_of_whole(found: Any, least: int, most: float = math.inf, *, or_none: bool = False) -> str | None:
    if (or_none and found is None) or (_is_whole(found) and least <= found <= most):
        return None
    up_to = "" if most == math.inf else f" to {most:,}"
    return f"{_brief(found)}; a whole number from {least}{up_to}{', or None,' if or_none else ''} would do"


def _amount(found: Any, *asked: Any, **named: Any) -> str | None:
    """Bytes or tokens, which need not be whole."""
    if isinstance(found, int | float | np.integer | np.floating) and 0 <= found < math.inf:
        return None
    return f"{_brief(found)}; a finite number, not below 0, would do"


def _truth(found: Any, *asked: Any, **named: Any) -> str | None:
    return None if isinstance(found, bool | np.bool_) else f"{_brief(found)}; True or False would do"


def _kinds(found: Any, *asked: Any, **named: Any) -> str | None:
    unknown = [kind for kind in found if kind not in KINDS] if isinstance(found, tuple) else [found]
    return f"{_brief(unknown[0])}; stages of the kinds {', '.join(KINDS)} would do" if unknown else None


def _stages(found: Any, *asked: Any, **named: Any) -> str | None:
    """A stage waits for those before it."""
    if not isinstance(found, tuple) or not all(isinstance(one, Stage) for one in found) or not found:
        return f"{_brief(found)}; a tuple of Stage would do"
    begun: set[tuple[str, int]] = set()
    for one in found:
        if one.kind not in KINDS:
            return f"a stage of the kind {one.kind!r:.60}; {', '.join(KINDS)} would do"
        late = [key for key in one.after if key not in begun]
        if late:
            return f"stage {one.key} before {_brief(late[0])}, for which it waits; the other way round would do"
        begun.add(one.key)
    return None


def _has(protocol: Any) -> Check:
    """An object with all that a protocol has."""

    def check(found: Any, *asked: Any, **named: Any) -> str | None:
        lacking = [name for name in vars(protocol) if not name.startswith("_") and not hasattr(found, name)]
        return f"{_brief(found)}; what has {', '.join(lacking)}, too, would do" if lacking else None

    return check


def _selected(found: Any, block_tokens: int, stored_blocks: int) -> str | None:
    return _fault_of_whole(found, min(1, stored_blocks), stored_blocks, or_none=True)


def _kept(found: Any, stored_tokens: int) -> str | None:
    return _fault_of_whole(found, 0, stored_tokens)


def _index(found: Any, room: Room, reserved_bytes: float) -> str | None:
    if found is None:
        return None
    if not isinstance(found, Index) or not isinstance(found.spec, IndexSpec):
        return f"{_brief(found)}; an Index with an IndexSpec, or None, would do"
    if found.spec.kind not in (known := {**dict.fromkeys(INDEX_KINDS), **KEY_INDEXES}):
        return f"an index of the kind {found.spec.kind!r:.60}; {', '.join(known)} would do"
    counts = {name: getattr(found.spec, name) for name in ("heads", "rank", "block_tokens")}
    amounts = {name: getattr(found, name) for name in ("n_bytes", "kv_layers", "weight_bytes")}
    faults = [(name, _fault_of_whole(value, 1)) for name, value in counts.items()]
    faults += [(name, _amount(value)) for name, value in amounts.items()]
    return next((f"an index whose {name} is {fault}" for name, fault in faults if fault), None)


def _holdings(found: Any, *asked: Any, **named: Any) -> str | None:
    if not isinstance(found, tuple) or not all(isinstance(one, Holding) for one in found):
        return f"{_brief(found)}; a tuple of Holdings would do"
    faults = ((one.name, _amount(one.n_bytes(0))) for one in found)
    return next((f"a holding {name!r:.60} of {fault}" for name, fault in faults if fault), None)


def _ask(found: Any, index: IndexSpec, stored_blocks: int) -> str | None:
    if not isinstance(found, Ask):
        return f"{_brief(found)}; an Ask would do"
    most = {"k": found.blocks}
    counts = {name: getattr(found, name) for name in ("blocks", "k", "heads", "vectors", "rank")}
    faults = ((name, _fault_of_whole(value, 0, most.get(name, math.inf))) for name, value in counts.items())
    return next((f"a question whose {name} is {fault}" for name, fault in faults if fault), None)


def _take(found: Any, ranked: Ranked) -> str | None:
    """Blocks that are stored, each once in a row, and no more than a row may want."""
    if not isinstance(found, BlockRows):
        return f"{_brief(found)}; a BlockRows would do"
    ids, of = found.ids, ranked.blocks
    if found is of:
        return None
    if found.rows != of.rows:
        return f"{found.rows} rows; {of.rows} would do, as the answer has"
    if ids.dtype.kind not in "iu":
        return f"ids of the type {ids.dtype}; whole numbers would do"
    if ids.size and (ids.min() < 0 or ids.max() >= ranked.stored_blocks):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        return f"block {wrong}; one of the {ranked.stored_blocks} that are stored would do, from 0 on"
    places = np.sort(found.spread(np.arange(found.rows)) * ranked.stored_blocks + ids, axis=None)
    if len(twice := places[:-1][np.diff(places) == 0]):
        return f"block {twice[0] % ranked.stored_blocks} twice in a row; each once would do"
    if ranked.most_blocks is not None and found.widest > ranked.most_blocks:
        return f"{found.widest} blocks in a row; at most {ranked.most_blocks} would do, as memory is held for these"
    return None


def _scores(found: Any, layer: int, queries: np.ndarray, blocks: int) -> str | None:
    scores = np.asarray(found)
    if scores.dtype.kind not in "fiu" or scores.ndim != 3 or scores.shape[::2] != (len(queries), blocks):
        came = scores.shape if scores.ndim else _brief(found)
        return f"{came}; numbers [{len(queries)} sequences, {queries.shape[1]} query heads, {blocks} blocks] would do"
    return (
        "a score that is not a number; -inf for a block that nobody wants would do" if np.isnan(scores).any() else None
    )


def _tiers(found: Any, size: KvSize) -> str | None:
    if not isinstance(found, tuple):
        return f"{_brief(found)}; a tuple with the tier of each of {size.layers} layers would do"
    if len(found) != size.layers:
        return f"{len(found):,} tiers; one for each of {size.layers} layers would do"
    unknown = set(found) - set(_TIERS)
    return f"the tier {_brief(min(unknown, key=repr))}; {_or(_TIERS)} would do" if unknown else None


def _away(found: Any) -> str | None:
    return None if found in (None, "host", "storage") else f"{_brief(found)}; host, storage or None would do"


def _joins(found: Any, decoding: bool) -> str | None:
    if found is False and not decoding:
        return "False where nobody decodes; then nobody ever would: True would do"
    return _truth(found)


def _layout(found: Any, *asked: Any, **named: Any) -> str | None:
    return None if isinstance(found, Layout | ClusterLayout) else f"{_brief(found)}; a Layout or ClusterLayout would do"


def fault_of_lookup(found: Any, wanted: BlockRows, blocks: int, slots: int) -> str | None:
    """Where a row has this many slots and blocks."""
    if not isinstance(found, Lookup):
        return f"{_brief(found)}; a Lookup would do"
    if np.shape(found.missing) != found.wanted.ids.shape or found.missing.dtype != bool:
        return f"missing as {_brief(found.missing)}; a truth value for each of the blocks would do"
    if found.slots is None:
        return None
    # What finds no slot lies in a read buffer, whose places are counted on. Where a slot is the number of its block,
    # there are as many.
    most = slots if wanted.widest <= slots else slots + wanted.widest
    most = most if found.dropped is None else max(most, blocks)
    if np.shape(found.slots) != found.wanted.ids.shape or found.slots.dtype.kind not in "iu":
        return f"slots as {_brief(found.slots)}; a whole number for each of the blocks would do"
    if found.slots.size and (found.slots.min() < 0 or found.slots.max() >= most):
        wrong = found.slots.min() if found.slots.min() < 0 else found.slots.max()
        return f"slot {wrong}; one of 0 to {most - 1} would do"
    return None


# By kind and method of a policy, and by what it has instead of methods.
METHODS: Mapping[str, Mapping[str, Check]] = {
    "selector": {
        "selected": _selected,
        "wanted_tokens": _amount,
        "kept_tokens": _kept,
        "index": _index,
        "rank": _whole(1),
        "vectors": _whole(0),
        "ask": _ask,
        "take": _take,
        "stages": _stages,
    },
    "index": {"scores": _scores},
    "residency": {
        "reserved_bytes": _amount,
        "slots_within": _whole(0),
        "kept_tokens": _whole(0),
        "holdings": _holdings,
        "away_tokens": _whole(0),
        "arranged": _stages,
        "start": _has(Resident),
    },
    "layout": {"block_tokens": _whole(1), "key_rank": _whole(1, or_none=True), "layout": _layout},
    "upkeep": {"in_blocks": _whole(0), "holdings": _holdings, "mean_recent": _amount, "start": _has(Kept)},
    "placement": {"tiers": _tiers},
    "batching": {"joins": _joins},
}
ATTRIBUTES: Mapping[str, Mapping[str, Check]] = {
    "selector": dict.fromkeys(("clusters", "for_all_layers", "per_head", "fixed", "evicts"), _truth),
    "index": {},
    "residency": dict.fromkeys(("fixed", "keeps", "swaps", "index_on_storage"), _truth),
    "layout": {
        "clusters": _truth,
        "fixed": _truth,
        "beside_moves": _kinds,
        "before_write": _kinds,
        "after_prefill": _kinds,
        "reference_queries": _whole(0),
    },
    "upkeep": {"clusters": _truth, "grows": _truth, "beside_moves": _kinds, "after_attention": _kinds},
    "placement": {"away": _away, "mapped": _truth, "runtime_share": _amount},
    "batching": {"prefill_tokens": _whole(1, or_none=True)},
}


def _is_whole(found: Any) -> bool:
    return isinstance(found, int | np.integer) and not isinstance(found, bool)


def _or(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"


def _brief(thing: Any) -> str:
    return f"{thing!r:.60}"
