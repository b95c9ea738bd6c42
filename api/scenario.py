"""Scenarios as a user names them, with what is to be different about them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry.pipelines.checks import names_in_use, system_of
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import dump_scenario, load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# What is to be different: {"link.rtt": "20 ms"}, or as the command's --set has it, ["link.rtt=20 ms"].
Settings = Mapping[str, Any] | Sequence[str]
# A scenario, its bundled name, its file, or what such a file would say.
Source = Scenario | str | Path | Mapping[str, Any]


@naming_plugins()
def load(source: Source, settings: Settings = (), *, system: str | None = None, seed: int | None = None) -> Scenario:
    """The scenario of a bundled name, a file, or a mapping as such a file has it; all that it names is checked, too.

    `settings` change values by their path, ``{"link.rtt": "20 ms", "workload.context": "16Ki"}``, or as ``--set`` has
    them, ``["link.rtt=20 ms"]``; physical values carry their unit. Under another `system` than its own the scenario's
    policies are left out: they are its own system's. `seed` is the same as the setting ``seed``.

    Raises InputError with a line per fault: FILE:LINE: key.path: what came and what would do.
    """
    asked = [*overrides_of(settings), *([] if seed is None else [f"seed={seed}"])]
    if isinstance(source, Scenario):
        if not asked and system in (None, source.system):
            return source
        described: str | Path | Mapping[str, Any] = dump_scenario(source)
    else:
        described = source
    if system is not None:
        own = load_scenario(described, asked).system
        dropped = [] if system == own else ["policies={}"]
        asked = [*dropped, *asked, f"system={system}"]
    return load_scenario(described, asked, check=names_in_use)


def override(scenario: Scenario, settings: Settings) -> Scenario:
    """The same scenario with other values; `settings` and errors are those of ``load``. `scenario` stays as it is."""
    return load(scenario, settings)


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


def under_systems(scenario: Scenario, systems: Sequence[str] | None) -> dict[str, Scenario]:
    """The scenario under each of these systems, in their order; None: those of its system's paper.

    Raises InputError for a system that is not known, or an empty list.
    """
    table = WORKLOADS[scenario.workload.kind].systems
    if isinstance(systems, str):
        raise InputError(f'systems: {systems!r:.60} is one text; write ["{systems:.40}"]')
    if systems is None:
        paper = system_of(scenario.workload.kind, scenario.system).paper
        systems = [name for name, system in table.items() if system.paper == paper]
    if not systems:
        raise InputError(f"systems: none is named; known: {', '.join(table)}")
    for name in systems:
        try:
            system_of(scenario.workload.kind, name)
        except InputError as error:
            raise InputError(f"systems: {error}") from None
    return {name: scenario.under(name) for name in systems}


def check_workload(scenario: Scenario, kind: str, command: str, example: str) -> None:
    """Raises InputError where `command` works on workloads of another kind than the scenario's; names an `example`."""
    if scenario.workload.kind != kind:
        raise InputError(
            f"workload.kind: {command} works on {kind}, and {scenario.name} is {scenario.workload.kind};"
            f" a scenario that it works on is {example}"
        )
