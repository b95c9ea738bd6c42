"""A scenario as one flat row: every setting under its dotted name, SI units inside."""

import json
from collections.abc import Collection
from typing import Any

from kvferry.scenarios.named_files import named_files, portable_name
from kvferry.specs.scenario import Scenario

Scalar = str | float | int | bool
# Prose about sources, which only the profile needs.
_PROSE = ("source", "sources")
# Suffixes of field names that their YAML keys do not have (specs.base.Part), and `.name` of a named record.
_ENDINGS = ("_bytes_per_s", "_s", "_bytes", "_hz", "_j", ".name")


def settings_of(scenario: Scenario) -> dict[str, Scalar]:
    """ "workload.context" -> 16384, "link.rtt_s" -> 0.004 ...: field names joined by dots.

    Lists are JSON text; what is not set is absent, and so is prose about sources. A file that is named by its path
    stands with its digest and its name, the same wherever it lies.
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

    dumped = scenario.model_dump(exclude=scenario.unsaid)
    lay_out(dumped, ())
    for key, path in named_files(dumped).items():
        # One that is gone stays as it was written.
        if path.exists():
            found[".".join(key)] = portable_name(path)
    return found


def column_of(key: str, columns: Collection[str]) -> str | None:
    """The column that a key of a scenario file or a metric means: "link.rtt" -> "link.rtt_s", "device" ->
    "device.name", "ttft_s" -> itself. No key of a scenario means a metric: there is `link_bytes`, and "link" is not
    it."""
    if key in columns:
        return key
    return next((key + ending for ending in _ENDINGS if "." in key + ending and key + ending in columns), None)


def key_of(column: str) -> str:
    """The key of a scenario file that a column of settings is about: "link.rtt_s" -> "link.rtt"."""
    return next((column.removesuffix(ending) for ending in _ENDINGS if column.endswith(ending)), column)
