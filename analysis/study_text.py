"""A study or a search as it stands by itself: names are replaced by what they name, so that its text alone makes its
points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvferry.analysis.search_spec import SearchSpec
from kvferry.analysis.study_base import StudyBase
from kvferry.analysis.study_spec import StudySpec
from kvferry.analysis.variants import Variants
from kvferry.scenarios.named_files import named_files
from kvferry.specs.node import Node

Text = dict[str, Any]


def study_text(name: str, spec: StudySpec, tree: Node, base: StudyBase, variants: Variants) -> Text:
    """Returns what a file would say that extends nothing. Files are named by their absolute paths."""
    found: Text = {"name": name, "base": base.resolved.plain()}
    if variants:
        found["variants"] = {label: _plain(base, values) for label, values in variants.items()}
    if spec.axes:
        found["axes"] = {key: _values(base, key, tree.find(("axes", key))) for key in spec.axes}
    if spec.zip:
        found["zip"] = [
            {key: _values(base, key, tree.find(("zip", n, key))) for key in group} for n, group in enumerate(spec.zip)
        ]
    if spec.samples:
        found["samples"] = [
            sample.model_dump(exclude={"keys"})
            | {"keys": {key: _values(base, key, tree.find(("samples", n, "keys", key))) for key in sample.keys}}
            for n, sample in enumerate(spec.samples)
        ]
    if spec.seeds is not None:
        found["seeds"] = list(spec.seeds)
    return found | {key: node.plain() for key in ("where", "plots") if (node := tree.child(key)) is not None}


def search_text(name: str, spec: SearchSpec, tree: Node, base: StudyBase) -> Text:
    """Returns what a search's file would say that extends nothing and leaves nothing to defaults. Files are named by
    their absolute paths."""
    return {
        "name": name,
        "base": base.resolved.plain(),
        "space": {key: _values(base, key, tree.find(("space", key))) for key in spec.space},
        "objectives": [one.model_dump(exclude_none=True) for one in spec.objectives],
        "constraints": list(spec.constraints),
        "where": list(spec.where),
        **({} if spec.seeds is None else {"seeds": list(spec.seeds)}),
        **{key: getattr(spec, key) for key in ("points", "at_once", "sampler", "seed")},
    }


def files_of(text: Mapping[str, Any]) -> list[Path]:
    """Returns the files and folders that a study's or a search's text names by absolute paths, each once."""
    found = dict.fromkeys(named_files(text["base"]).values())
    for key, value in _set(text):
        scenario: Any = value
        for part in reversed(key.split(".")):
            scenario = {part: scenario}
        found |= dict.fromkeys(named_files(scenario).values())
    return list(found)


def with_files(text: Any, named: Mapping[str, str]) -> Any:
    """Returns the text with other paths for its files: by what stands there now, what shall stand there."""
    if isinstance(text, Mapping):
        return {key: with_files(value, named) for key, value in text.items()}
    if isinstance(text, list):
        return [with_files(value, named) for value in text]
    return named.get(text, text) if isinstance(text, str) else text


def _set(text: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each key that varies with each of its values."""
    samples = [one["keys"] for one in text.get("samples", ())]
    groups = [text.get("axes", {}), text.get("space", {}), *text.get("zip", ()), *samples]
    for group in groups:
        for key, values in group.items():
            yield from ((key, value) for value in (values if isinstance(values, list) else ()))
    for values in text.get("variants", {}).values():
        yield from values.items()


def _values(base: StudyBase, key: str, node: Node | None) -> Any:
    """Returns a list with its names looked up, or a range as it is written."""
    assert node is not None
    if not isinstance(node.value, list):
        return node.plain()
    return [_plain(base, {key: item})[key] for item in node.value]


def _plain(base: StudyBase, values: Mapping[str, Node]) -> dict[str, Any]:
    """Returns the values, names of devices, models and files looked up; a number or a list names nothing."""
    named = {key: node for key, node in values.items() if isinstance(node.value, str | dict)}
    return {key: (base.looked_up({key: node})[key] if key in named else node).plain() for key, node in values.items()}
