"""A scenario as one flat row: every setting under its dotted name, SI units inside."""

import json
from collections.abc import Collection
from typing import Any

from kvferry.specs.scenario import Scenario

Scalar = str | float | int | bool
# Prose about sources, which only the profile needs.
_PROSE = ("source", "sources")
# Suffixes of field names that their YAML keys do not have (specs.base.Part), and `.name` of a named record.
_ENDINGS = ("", "_s", "_bytes", "_bytes_per_s", "_hz", ".name")


def settings_of(scenario: Scenario) -> dict[str, Scalar]:
    """ "workload.context" -> 16384, "link.rtt_s" -> 0.004 ...: field names joined by dots.

    Lists are JSON text; what is not set is absent, and so is prose about sources.
    """
    found: dict[str, Scalar] = {}

    def lay_out(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in _PROSE:
                    lay_out(item, (*path, key))
        elif isinstance(value, list | tuple):
            found[".".join(path)] = json.dumps(value)
        elif value is not None:
            found[".".join(path)] = value

    lay_out(scenario.model_dump(), ())
    return found


def column_of(key: str, columns: Collection[str]) -> str | None:
    """The column that a key of a scenario file means: "link.rtt" -> "link.rtt_s", "device" -> "device.name"."""
    return next((key + ending for ending in _ENDINGS if key + ending in columns), None)
