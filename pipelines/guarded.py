"""Policies of the user's own, whose answers are checked where they are asked: those of KVFerry cost nothing.

An answer that cannot be is a KvferryError that names the file, the line where its method stands, what came and what
would do.
"""

import copy
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn

from kvferry.pipelines.answers import (
    ATTRIBUTES,
    METHODS,
    Check,
    fault_of_cost,
    fault_of_durations,
    fault_of_lookup,
    fault_of_plan,
)
from kvferry.pipelines.decoding.systems import DecodeSystem
from kvferry.pipelines.guarded_loader import GuardedLoader
from kvferry.pipelines.loading.systems import LoadingSystem
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import LoadProblem
from kvferry.specs.document import shown
from kvferry.specs.errors import KvferryError


def guarded(kind: str, name: str, path: str, entry: Any) -> Any:
    """The entry of a plugin's file for a table (``plugin_kinds.entry_of``), with every answer checked. Of a system,
    those of its parts that do not come with KVFerry."""
    by = partial(_refuse, f"{kind} {name!r}", path)
    if isinstance(entry, LoadingSystem):
        own = kind == "loader" or not _bundled(entry.loader)
        return replace(entry, loader=_loaders(entry.loader, by)) if own else entry
    if isinstance(entry, DecodeSystem):
        parts = {one.name: getattr(entry.roles, one.name) for one in fields(entry.roles)}
        own_parts = {role: part for role, part in parts.items() if role in METHODS and not _bundled(type(part))}
        return replace(
            entry, roles=replace(entry.roles, **{role: _part(role, part, by) for role, part in own_parts.items()})
        )
    if kind == "schedule":
        return _planner(entry, by)
    if kind == "cost-model":
        return _builder(entry, by)
    if kind in METHODS:
        return _role(kind, entry, by)
    return entry


# Called with the object that was asked, its method and what is wrong.
_Refuse = Callable[[Any, str, str], NoReturn]


def _refuse(who: str, path: str, asked: Any, method: str, what: str) -> NoReturn:
    found = inspect.unwrap(asked) if callable(asked) and not method else getattr(asked, method or "__call__", None)
    code = getattr(inspect.unwrap(found) if found is not None else None, "__code__", None)
    line = f":{code.co_firstlineno}" if code is not None and code.co_filename == path else ""
    raise KvferryError(f"{shown(Path(path))}{line}: {who}: {method + ' ' if method else ''}gave {what}")


def _bundled(thing: Any) -> bool:
    return str(getattr(inspect.unwrap(thing), "__module__", "")).startswith("kvferry.")


def _loaders(loader: Callable[..., Any], by: _Refuse) -> Callable[..., Any]:
    @wraps(loader, updated=())
    def made(*values: Any, **named: Any) -> GuardedLoader:
        own = loader(*values, **named)
        # Errors name a loader by its class.
        return type(type(own).__name__, (GuardedLoader,), {})(own, partial(by, own))

    return made


def _planner(planner: Callable[..., Any], by: _Refuse) -> Callable[..., Plan]:
    @wraps(planner, updated=())
    def planned(problem: LoadProblem, bytes_per_s: float, *values: Any, **named: Any) -> Plan:
        plan = planner(problem, bytes_per_s, *values, **named)
        if fault := fault_of_plan(plan, problem):
            by(planner, "", fault)
        return plan

    return planned


def _builder(builder: Callable[..., Any], by: _Refuse) -> Callable[..., Any]:
    @wraps(builder, updated=())
    def built(*values: Any, **named: Any) -> "_Costs":
        return _Costs(builder(*values, **named), by)

    return built


class _Costs:
    """A CostModel."""

    def __init__(self, costs: Any, by: _Refuse) -> None:
        self._costs, self._by = costs, by
        for method in ("cost", "durations_s"):
            if not callable(getattr(costs, method, None)):
                by(costs, "", f"{costs!r:.60}; what has a method {method} would do")

    def cost(self, op: Any) -> Any:
        found = self._costs.cost(op)
        if fault := fault_of_cost(found):
            self._by(self._costs, "cost", fault)
        return found

    def durations_s(self, op: Any, **more: Any) -> Any:
        found = self._costs.durations_s(op, **more)
        if fault := fault_of_durations(found):
            self._by(self._costs, "durations_s", fault)
        return found


def _role(role: str, maker: Callable[..., Any], by: _Refuse) -> Callable[..., Any]:
    if isinstance(maker, type):
        return _class(role, maker, by)

    @wraps(maker, updated=())
    def made(*values: Any, **named: Any) -> Any:
        return _part(role, maker(*values, **named), by)

    return made


def _part(role: str, part: Any, by: _Refuse) -> Any:
    """A role's object with its answers checked."""
    own = _class(role, type(part), by)
    part = copy.copy(part)
    object.__setattr__(part, "__class__", own)
    _check_attributes(role, part, by)
    return part


def _class(role: str, own: type, by: _Refuse) -> type:
    """The class with the answers of its methods checked, and what it has instead of methods as it is made."""
    checks: Mapping[str, Check] = {name: check for name, check in METHODS[role].items() if hasattr(own, name)}
    body: dict[str, Any] = {"__slots__": (), "__module__": own.__module__, "__qualname__": own.__qualname__}
    body |= {name: _method(getattr(own, name), name, check, own, by) for name, check in checks.items()}
    if role == "residency":
        body["start"] = _starting(body["start"], own, by)

    @wraps(own.__init__)  # type: ignore[misc]
    def init(self: Any, *values: Any, **named: Any) -> None:
        own.__init__(self, *values, **named)  # type: ignore[misc]
        _check_attributes(role, self, by)

    body |= {"__init__": init, "__doc__": own.__doc__}
    return types.new_class(own.__name__, (own,), {}, lambda namespace: namespace.update(body))


def _check_attributes(role: str, part: Any, by: _Refuse) -> None:
    for name, check in ATTRIBUTES[role].items():
        if fault := check(getattr(part, name)):
            own = inspect.getattr_static(type(part), name, None)
            by(types.SimpleNamespace(**{name: own.fget if isinstance(own, property) else None}), name, fault)


def _method(method: Callable[..., Any], name: str, check: Check, own: type, by: _Refuse) -> Callable[..., Any]:
    @wraps(method)
    def asked(self: Any, *values: Any, **named: Any) -> Any:
        found = method(self, *values, **named)
        if fault := check(found, *values, **named):
            by(own, name, fault)
        return found

    return asked


def _starting(start: Callable[..., Any], own: type, by: _Refuse) -> Callable[..., Any]:
    @wraps(start)
    def started(
        self: Any, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1
    ) -> "_GuardedResident":
        resident = start(self, rows, blocks, slots, kept_tokens, block_tokens)
        return _GuardedResident(resident, blocks, slots, by)

    return started


class _GuardedResident:
    """A Resident whose look-ups are checked."""

    def __init__(self, resident: Any, blocks: int, slots: int, by: _Refuse) -> None:
        self._resident, self._sizes, self._by = resident, (blocks, slots), by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resident, name)

    def look_up(self, wanted: BlockRows, tokens: Any = None) -> Lookup:
        found = self._resident.look_up(wanted, tokens)
        if fault := fault_of_lookup(found, wanted, *self._sizes):
            self._by(self._resident, "look_up", fault)
        return found
