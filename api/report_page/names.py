"""Names of results that tell them apart: what was set otherwise is in them where the rest is alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from kvferry.api.report_page.results import BothWorlds, Comparison, Points, Result, RunResult
from kvferry.specs.document import parse_document
from kvferry.specs.errors import InputError

# Keys in a name, and letters of a value.
_MOST_KEYS, _MOST_LETTERS = 3, 40
# No value is that of most.
_NONE = object()
_PROSE = {"source", "sources", "name"}


def names_of(results: Sequence[Result]) -> list[str]:
    """Returns a name for each result, no two alike."""
    plain = [_plain(result) for result in results]
    found = list(plain)
    for name in {name for name in plain if plain.count(name) > 1}:
        places = [n for n, one in enumerate(plain) if one == name]
        for n, more in zip(places, _differences([results[n] for n in places]), strict=True):
            found[n] = f"{name}, {more}" if more else f"{name} ({results[n].name})"
    taken: dict[str, int] = {}
    for n, name in enumerate(found):
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            found[n] = f"{name} ({results[n].name}, {taken[name]})"
    return found


def _plain(result: Result) -> str:
    if isinstance(result, RunResult):
        return f"{result.found['scenario']}: {result.system}"
    if isinstance(result, Comparison):
        return f"{result.name}: {len(result.runs) + len(result.failed)} systems"
    if isinstance(result, Points):
        return f"{result.name}: {len(result.table):,} points"
    if isinstance(result, BothWorlds):
        return f"{result.found['study']}: both worlds"
    return f"{result.found.get('paper', result.name)}: a paper's figures"


def _differences(results: Sequence[Result]) -> list[str]:
    """Returns what each of them sets that not all do alike; what most of them set alike is said of the others alone."""
    settings = [_settings(result.scenario) if isinstance(result, RunResult) else {} for result in results]
    keys = [
        key
        for key in dict.fromkeys(key for one in settings for key in one)
        if len({one.get(key) for one in settings}) > 1
    ]
    # A part that is another one altogether is named by its name.
    whole = [key for key in keys if key.endswith(".name")]
    keys = whole + [key for key in keys if not any(key.startswith(one.removesuffix("name")) for one in whole)]
    usual = {key: value for key in keys if (value := _of_most([one.get(key) for one in settings])) is not _NONE}
    return [_said(one, [key for key in keys if key not in usual or one.get(key) != usual[key]]) for one in settings]


def _of_most(values: Sequence[str | None]) -> str | object | None:
    """Returns the value that more than half of them are."""
    value, n = Counter(values).most_common(1)[0]
    return value if 2 * n > len(values) else _NONE


def _said(settings: Mapping[str, str], keys: Sequence[str]) -> str:
    found = [
        f"{key.removesuffix('.name')} {shorten(settings.get(key, 'not set'), _MOST_LETTERS, placeholder=' ...')}"
        for key in keys[:_MOST_KEYS]
    ]
    more = len(keys) - _MOST_KEYS
    return ", ".join([*found, f"{more} more"] if more > 0 else found)


def _in_words(value: Any) -> str:
    """Returns a setting as a reader would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return "; ".join(map(_in_words, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(scenario: str) -> dict[str, str]:
    try:
        tree = parse_document(scenario, "scenario.yaml", Path())
    except InputError:
        return {}
    found: dict[str, str] = {}

    def lay_out(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                if key not in _PROSE or (key == "name" and path):
                    lay_out(item, (*path, key))
        elif value is not None:
            found[".".join(path)] = _in_words(value)

    lay_out(tree.plain(), ())
    return found
