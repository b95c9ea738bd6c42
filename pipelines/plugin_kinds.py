"""What a plugin may add, by kind: the table that has the names, and what an entry must be."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS, AssistSystem
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, ROLES, DecodeSystem
from kvferry.pipelines.loading.systems import SYSTEMS, LoadingSystem
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.policies.decode.batcher import Batching
from kvferry.policies.decode.blocking import LayoutRole
from kvferry.policies.decode.index import INDEX_KINDS
from kvferry.policies.decode.key_index import KEY_INDEXES, KeyIndex, selector_by
from kvferry.policies.decode.placement import Placement
from kvferry.policies.decode.residency import Residency
from kvferry.policies.decode.selector import Selector
from kvferry.policies.decode.upkeep import Upkeep
from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.staged import SCHEDULES
from kvferry.sim.costs.cost_model import COST_MODELS

# An entry as its table takes it, made of what the plugin has under that name. Raises ValueError for what cannot be.
Made = Callable[[Any], Any]
_SYSTEMS: dict[type, dict[str, Any]] = {
    LoadingSystem: SYSTEMS,
    DecodeSystem: DECODE_SYSTEMS,
    AssistSystem: ASSIST_SYSTEMS,
}
_PROTOCOLS: dict[str, Any] = {
    "selector": Selector,
    "residency": Residency,
    "layout": LayoutRole,
    "upkeep": Upkeep,
    "placement": Placement,
    "batching": Batching,
}
KINDS = ("loader", "schedule", *ROLES, "index", "system", "cost-model")


def table_of(kind: str, thing: Any) -> dict[str, Any]:
    """The table that an entry of this kind goes into. ValueError for a system that is none."""
    if kind == "loader":
        return SYSTEMS
    if kind == "system":
        if type(thing) not in _SYSTEMS:
            known = ", ".join(one.__name__ for one in _SYSTEMS)
            raise ValueError(f"{_brief(thing)} is no system; make it with one of {known}")
        return _SYSTEMS[type(thing)]
    tables: dict[str, dict[str, Any]] = {
        "schedule": SCHEDULES,
        "cost-model": COST_MODELS,
        "index": KEY_INDEXES,
        **ROLES,
    }
    return tables[kind]


def taken_names(kind: str) -> dict[str, Any]:
    """The entries whose names one of this kind cannot have. A system's name is one of all workloads."""
    if kind in ("loader", "system"):
        return {name: system for table in _SYSTEMS.values() for name, system in table.items()}
    if kind == "index":
        # It comes with a selector of its name.
        return {**dict.fromkeys(INDEX_KINDS), **KEY_INDEXES, **ROLES["selector"]}
    return table_of(kind, None)


def names_by_kind() -> dict[str, list[str]]:
    """What a scenario can name beside its system, the user's own included: schedules, roles of decoding, costs."""
    return {kind: list(table_of(kind, None)) for kind in KINDS if kind not in ("loader", "index", "system")}


def entry_of(kind: str, thing: Any) -> Any:
    """What stands in the table. ValueError says what the thing lacks."""
    if kind == "system":
        return thing
    if kind == "attention" and isinstance(thing, AttentionKernel):
        return lambda: thing
    if not callable(thing):
        raise ValueError(f"{_brief(thing)} is no class or function")
    if kind == "loader":
        _check_has(thing(), Loader)
        about = (inspect.getdoc(thing) or "a loader of one's own").splitlines()[0].rstrip(".")
        return LoadingSystem(loader=thing, codec="huffman", about=about)
    if kind in ("schedule", "cost-model"):
        first, second = {"schedule": ("problem", "bytes_per_s"), "cost-model": ("processor", "model")}[kind]
        try:
            inspect.signature(thing).bind(None, None)
        except TypeError as error:
            raise ValueError(f"takes ({first}, {second}), and more with a default alone: {error}") from None
        return thing
    if kind == "index":
        if not (isinstance(thing, type) and issubclass(thing, KeyIndex)):
            raise ValueError(f"{_brief(thing)} is no KeyIndex; a class with this base would do")
        selector_by("index", thing)
        return thing
    made = thing()
    if not is_dataclass(made):
        raise ValueError("a role is a dataclass; write @dataclass(frozen=True, kw_only=True) above it")
    if kind == "attention" and not isinstance(made, AttentionKernel):
        raise ValueError(f"makes {_brief(made)}, which is no AttentionKernel")
    if kind in _PROTOCOLS:
        _check_has(made, _PROTOCOLS[kind])
    return thing


def _check_has(made: Any, protocol: Any) -> None:
    declared: Mapping[str, Any] = {**vars(protocol), **getattr(protocol, "__annotations__", {})}
    lacking = [name for name in declared if not name.startswith("_") and not hasattr(made, name)]
    if lacking:
        raise ValueError(f"{type(made).__name__} lacks {', '.join(lacking)}, which a {protocol.__name__} has")


def _brief(thing: Any) -> str:
    return f"{thing!r:.60}"
