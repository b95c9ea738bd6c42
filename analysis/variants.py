"""Variants: labels, each with the keys of a scenario that it sets, of any system."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvferry.scenarios.faults import input_error
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.document import parse_document, read_document
from kvferry.specs.node import Node, Place, brief, node_of

# The column of a table that has the labels, and what plots name.
VARIANT = "variant"
_KEY = "variants"
_LABEL = re.compile(r"[^\s*](.{0,58}[^\s*])?")
# Values by dotted key, by label.
Variants = dict[str, dict[str, Node]]


def variants_in(tree: Node) -> Variants:
    """Returns what a file says under `variants`; nothing where it does not. Raises InputError."""
    node = tree.child(_KEY)
    if node is None:
        return {}
    faults = list(_faults(node))
    if faults:
        raise input_error(faults, tree)
    return {label: dict(values.value or {}) for label, values in node.value.items()}


def variants_of(source: str | Path | Mapping[str, Any]) -> Variants:
    """Returns what a mapping, its text in braces, or a file of it says by label; of a study's file what that says under
    `variants`. Raises InputError."""
    here = Place("variants", None, Path.cwd())
    if isinstance(source, Mapping):
        node = node_of(dict(source), here)
    elif str(source).lstrip().startswith("{"):
        node = parse_document(str(source), "variants", Path.cwd())
    else:
        node = read_document(Path(source))
    own = node.child(_KEY)
    return variants_in(Node({_KEY: node if own is None else own}, node.place, node.key_place))


def keys_set(variants: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns every key that one of them sets, once."""
    return list(dict.fromkeys(key for values in variants.values() for key in values))


def _faults(node: Node) -> Iterator[Complaint]:
    if not isinstance(node.value, dict) or not node.value:
        example = "write them like {SparKV: {system: sparkv}, Ours: {system: ferry}}"
        yield Complaint((_KEY,), f"{brief(node.value)} is no mapping of labels; {example}")
        return
    for label, values in node.value.items():
        at = (_KEY, label)
        if not _LABEL.fullmatch(label):
            yield Complaint(at, f"{label!r:.80} is no label: at most 60 characters, no * at its ends", at_key=True)
        if values.value is not None and not isinstance(values.value, dict):
            yield Complaint(at, f"{brief(values.value)} is no mapping of keys; write it like {{system: ferry}}")
            continue
        keys = list(values.value or ())
        for key in keys:
            above = next((other for other in keys if key.startswith(f"{other}.")), None)
            if above is not None:
                yield Complaint((*at, key), f"sets what {above} sets, too; keep one of them", at_key=True)
            if not all(key.split(".")):
                yield Complaint((*at, key), "is no key of a scenario, as in policies.schedule", at_key=True)
