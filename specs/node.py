"""A value together with the place it was written at, so that an error can point there."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvferry.specs.errors import InputError

# Lists are shorter than this has digits for, and Python reads no number of thousands of digits.
_INDEX = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, or a whole source such as ``--set link.rtt=4``."""

    source: str
    line: int | None
    # Where relative paths that are written here start.
    folder: Path

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Node:
    """A mapping (dict of nodes), a list of nodes, or a scalar. `key_place`: where the key it stands under is.
    `bases`: files whose keys were laid under it, but for some."""

    value: Any
    place: Place
    key_place: Place
    bases: "tuple[Node, ...]" = ()

    def plain(self) -> Any:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def child(self, key: str | int) -> "Node | None":
        if isinstance(self.value, dict):
            return self.value.get(str(key))
        if isinstance(self.value, list) and _INDEX.fullmatch(str(key)) and int(key) < len(self.value):
            return self.value[int(key)]
        return None

    def find(self, path: tuple[str | int, ...]) -> "Node | None":
        node: Node | None = self
        for key in path:
            node = node.child(key) if node else None
        return node

    def with_child(self, path: tuple[str, ...], new: "Node") -> "Node":
        """A copy in which the node at a path is another; mappings on the way are made where none were.

        Raises InputError, placed at `new`, where the path runs through a scalar or past the end of a list.
        """
        if not path:
            return new
        key, rest = path[0], path[1:]
        if self.value is None or isinstance(self.value, dict):
            below = self.child(key) or Node(None, new.place, new.place)
            return replace(self, value={**(self.value or {}), key: below.with_child(rest, new)})
        below_or_none = self.child(key)
        if below_or_none is None:
            what = f"a list of {len(self.value)}" if isinstance(self.value, list) else brief(self.value)
            raise InputError(f"{new.place}: {key!r} leads nowhere: what stands there is {what}, not a mapping")
        items = list(self.value)
        items[int(key)] = below_or_none.with_child(rest, new)
        return replace(self, value=items)

    def without(self, path: tuple[str | int, ...]) -> "Node":
        """A copy without the key at a path of mappings, and without mappings that this leaves empty."""
        below = self.child(path[0])
        if below is None:
            return self
        below = below.without(path[1:]) if len(path) > 1 else replace(below, value={})
        kept = {key: node for key, node in self.value.items() if key != path[0]}
        return replace(self, value={**self.value, path[0]: below} if below.value != {} else kept)

    def over(self, base: "Node") -> "Node":
        """This node's keys laid over those of a base, mapping by mapping; anything else replaces."""
        if not (isinstance(self.value, dict) and isinstance(base.value, dict)):
            return self
        merged = dict(base.value)
        for key, node in self.value.items():
            merged[key] = node.over(merged[key]) if key in merged else node
        return replace(self, value=merged)


def node_of(value: Any, place: Place) -> Node:
    """Nodes for a plain value, all at one place."""
    if isinstance(value, dict):
        value = {str(key): node_of(item, place) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [node_of(item, place) for item in value]
    return Node(value, place, place)


def brief(value: Any) -> str:
    """A value as an error shows it: in YAML's words, and never long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
