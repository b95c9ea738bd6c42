"""Scenarios as a user names them, with what is to be different about them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.analysis.folder import folder_name
from kvferry.pipelines.checks import names_in_use, system_of
from kvferry.pipelines.idle_settings import idle_settings
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.idle import IdlePolicies, fitted
from kvferry.scenarios.loader import dump_scenario, load_scenario, scenario_tree
from kvferry.scenarios.resolve import check_systems_of, keys_in, overridden, policies_in, policies_left_out, resolve
from kvferry.scenarios.sources import with_value
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node
from kvferry.specs.scenario import Scenario

# What is to be different: {"link.rtt": "20 ms"}, or as the command's --set has it, ["link.rtt=20 ms"].
Settings = Mapping[str, Any] | Sequence[str]
# A scenario, its bundled name, its file, or what such a file would say.
Source = Scenario | str | Path | Mapping[str, Any]


@naming_plugins()
def load(source: Source, settings: Settings = (), *, system: str | None = None, seed: int | None = None) -> Scenario:
    """The scenario of a bundled name, a file, or a mapping as such a file has it; all that it names is checked, too.

    `settings` change values by their path, ``{"link.rtt": "20 ms", "workload.context": "16Ki"}``, or as ``--set`` has
    them, ``["link.rtt=20 ms"]``; physical values carry their unit. `system` and `seed` are the same as the settings
    ``system`` and ``seed``. What the source says under ``policies`` is its own system's and is left out under another
    one; what `settings` say there holds for any system.

    Raises InputError with a line per fault: FILE:LINE: key.path: what came and what would do.
    """
    asked = [*_overrides(settings, seed), *([] if system is None else [f"system={system}"])]
    if isinstance(source, Scenario) and asked in ([], [f"system={source.system}"]):
        return source
    return load_scenario(_described(source), asked, check=names_in_use)


def override(scenario: Scenario, settings: Settings) -> Scenario:
    """The same scenario with other values; `settings` and errors are those of ``load``. `scenario` stays as it is."""
    return load(scenario, settings)


def _overrides(settings: Settings, seed: int | None) -> list[str]:
    return [*overrides_of(settings), *([] if seed is None else [f"seed={seed}"])]


def _described(source: Source) -> str | Path | Mapping[str, Any]:
    return dump_scenario(source) if isinstance(source, Scenario) else source


def overrides_of(settings: Settings) -> list[str]:
    """As --set has them. Raises InputError for what is no plain value."""
    if isinstance(settings, str):
        raise InputError(f'settings: {settings!r:.60} is one text; write ["{settings:.40}"] or {{"link.rtt": "20 ms"}}')
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={_text(key, value)}" for key, value in settings.items()]


def _text(key: str, value: Any) -> str:
    """A value in YAML. numpy's numbers are numbers."""
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if isinstance(value, Path):
        value = str(value.resolve())
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key}: {value} is not a finite number")
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        raise InputError(f"{key}: {value!r:.60} is no text, number, truth value, list or mapping") from None


@dataclass(frozen=True)
class Under:
    """A scenario as it is, and under each of some systems. ``remarks``: which settings and policies some of them do
    not have. ``left_out``: why systems cannot run it, by name, where none were named."""

    own: Scenario
    systems: Mapping[str, Scenario]
    remarks: tuple[str, ...]
    left_out: Mapping[str, str]


@naming_plugins()
def under_systems(
    source: Source,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    *,
    seed: int | None = None,
    without_refused: bool = False,
) -> Under:
    """The scenario under each of these systems, in their order; None: those of its system's paper. `without_refused`:
    also of named ones some that cannot run it are ``left_out``.

    Policies in `settings` hold for every system that has them, the source's own policies for its own system. Raises
    InputError as ``load`` does under its own system and the ones that are named, for a system that is not known, an
    empty list, and for a policy in `settings` that none of the systems has.
    """
    asked, described = _overrides(settings, seed), _described(source)
    own = load_scenario(described, asked)
    names = chosen_systems(own, systems)
    idle, found, left_out = IdlePolicies(), dict[str, Scenario](), dict[str, str]()
    for name in names:
        try:
            under = overridden(scenario_tree(described), [*asked, f"system={name}"])
            one = fitted(*under, policies_in(asked), names_in_use)
        except InputError as error:
            if name == own.system or (systems is not None and (not without_refused or len(names) == 1)):
                raise
            left_out[name] = str(error)
            continue
        found[name] = one.scenario
        idle.add(name, one.idle, one.heard)
    if not found:
        raise InputError("\n".join(left_out.values()))
    idle.check()
    check_systems_of(keys_in(asked), found)
    of_own = policies_left_out(scenario_tree(described), found, keys_in(asked))
    return Under(own, found, (*idle.remarks(), *idle_settings(keys_in(asked), found), *of_own), left_out)


@naming_plugins()
def under_variants(
    source: Source, variants: Mapping[str, Mapping[str, Node]], settings: Settings = (), *, seed: int | None = None
) -> Under:
    """Returns the scenario as each variant sets it, by label. Where one names another system than the source, the
    source's own policies are left out; `settings` hold for all that have them. Raises InputError as ``load`` does, and
    for variants that are the same, that share a folder's name, or whose workload is of another kind."""
    asked, described = _overrides(settings, seed), _described(source)
    own, found, idle = load_scenario(described, asked), dict[str, Scenario](), IdlePolicies()
    for label, values in variants.items():
        system = values.get("system")
        try:
            named = [] if system is None else [f"system={_text('system', system.plain())}"]
            tree, complaints = overridden(scenario_tree(described), [*asked, *named])
            for key, node in values.items():
                tree, complaints = resolve(with_value(tree, tuple(key.split(".")), node, node.place))
            own_keys = {tuple(key.split(".")) for key in values}
            given = [key for key in policies_in(asked) if key not in own_keys]
            one = fitted(tree, complaints, given, names_in_use)
            scenario = one.scenario
            if scenario.workload.kind != own.workload.kind:
                raise InputError(f"it is {scenario.workload.kind}, and {own.name} is {own.workload.kind}")
            for other, known in found.items():
                if known == scenario or folder_name(other) == folder_name(label):
                    what = "the same scenario as" if known == scenario else "called like"
                    raise InputError(f"it is {what} {other}; let it differ, or leave it out")
        except InputError as error:
            raise InputError("\n".join(f"variants: {label}: {line}" for line in str(error).splitlines())) from None
        found[label] = scenario
        idle.add(scenario.system, one.idle, one.heard)
    idle.check()
    own_of = policies_left_out(scenario_tree(described), {one.system for one in found.values()}, keys_in(asked))
    return Under(own, found, (*idle.remarks(), *idle_settings(keys_in(asked), found), *own_of), {})


def chosen_systems(own: Scenario, systems: Sequence[str] | None) -> Sequence[str]:
    """These systems, or those of the paper of the scenario's own. Raises InputError for a name that there is not."""
    table = WORKLOADS[own.workload.kind].systems
    if isinstance(systems, str):
        raise InputError(f'systems: {systems!r:.60} is one text; write ["{systems:.40}"]')
    if systems is None:
        paper = system_of(own.workload.kind, own.system).paper
        systems = [name for name, system in table.items() if system.paper == paper]
    if not systems:
        raise InputError(f"systems: none is named; known: {', '.join(table)}")
    for name in systems:
        try:
            system_of(own.workload.kind, name)
        except InputError as error:
            raise InputError(f"systems: {error}") from None
    return systems


def remarks_under(source: Source, settings: Settings, loaded: Scenario) -> list[str]:
    """Returns remarks on the policies that a source says for its own system, where it was `loaded` under another one,
    and on settings without effect. Raises InputError for settings of `system_policies` of yet another system."""
    given, system = keys_in(overrides_of(settings)), loaded.system
    check_systems_of(given, [system])
    left_out = policies_left_out(scenario_tree(_described(source)), [system], given)
    return [*idle_settings(given, {system: loaded}), *left_out]


def check_workload(scenario: Scenario, kind: str, command: str, example: str) -> None:
    """Raises InputError where `command` works on workloads of another kind than the scenario's; names an `example`."""
    if scenario.workload.kind != kind:
        raise InputError(
            f"workload.kind: {command} works on {kind}, and {scenario.name} is {scenario.workload.kind};"
            f" a scenario that it works on is {example}"
        )
