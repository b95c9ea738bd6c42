"""Reads one untrusted YAML file: plain types only, no duplicate keys, bounded size, depth and number of values."""

import math
import os
import re
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kvferry.specs.errors import InputError, quoted_name
from kvferry.specs.node import Node, Place

# A scenario has some hundred values, a device some fifty. An alias counts as all the values that it repeats.
MOST_BYTES = 1_000_000
MOST_VALUES = 20_000
MOST_DEPTH = 20
MOST_CHARACTERS = 10_000
# A sweep reads the same files again and again: this many of at most this many characters are kept as nodes.
_DOCUMENTS_KEPT, _MOST_KEPT = 256, 20_000
MISSING = "is not there"

_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# What PyYAML was reading, by the sign that begins it.
_OPENED = {"a flow mapping": "'{'", "a flow sequence": "'['", "a quoted scalar": "a quotation mark"}
# YAML 1.2's core words. Not 1.1's: there `no` is false, 1:30 is ninety and 1e9 is text.
_WORDS = {"": None, "~": None} | {
    form: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for form in (word, word.capitalize(), word.upper())
}


def read_document(path: Path) -> Node:
    """The file as nodes. Raises InputError when it is missing, no regular file, too large, or no good YAML."""
    return parse_document(read_text(path), shown(path), path.resolve().parent)


def shown(path: Path) -> str:
    """The path as errors show it: relative to the current folder if it lies below that."""
    absolute = Path(os.path.abspath(path))
    return quoted_name(str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute))


def expanded(path: str) -> Path:
    """The path with a leading ~ or ~USER written out; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def regular_file(path: Path) -> str | None:
    """What keeps a path from being read as a file, ``MISSING`` for one; None: nothing does."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        return MISSING if not isinstance(error, PermissionError) else "may not be read"
    if stat.S_ISDIR(mode):
        return "is a folder, not a file"
    return None if stat.S_ISREG(mode) else "is a pipe or a device, not a regular file"


def parse_document(text: str, source: str, folder: Path) -> Node:
    """YAML text as nodes; `source` is what errors call it, in `folder` its relative paths start. Raises InputError."""
    return (_kept if len(text) <= _MOST_KEPT else _parsed)(text, source, folder)


def _parsed(text: str, source: str, folder: Path) -> Node:
    try:
        composer = _Composer(text, source)
        root = composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise InputError(_said(error, source)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{source}:{line}: not valid YAML: U+{ord(text[error.position]):04X} may not occur") from None
    except (ValueError, OverflowError):  # an escape such as "\\U99999999"
        line = composer.line + 1
        raise InputError(f"{source}:{line}: not valid YAML: an escape names no character") from None
    if root is None:
        raise InputError(f"{source}:1: the file is empty; a mapping (key: value) is needed")
    return _Builder(source, folder).build(root, Place(source, 1, folder))


def _said(error: yaml.MarkedYAMLError, source: str) -> str:
    """Returns what is wrong, and where; of what is opened and never closed, where it was opened."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    if "'\\t'" in (error.problem or ""):
        return f"{source}:{line}: not valid YAML: a tab; YAML is indented by blanks, two for each level"
    opened = next((sign for words, sign in _OPENED.items() if words in (error.context or "")), None)
    began = error.context_mark
    if opened is not None and began is not None and began.line + 1 < line:
        found = "the end of the file" if "stream" in (error.problem or "") else f"line {line}"
        return f"{source}:{began.line + 1}: not valid YAML: {opened} opens here and is not closed before {found}"
    return f"{source}:{line}: not valid YAML: {': '.join(filter(None, (error.context, error.problem)))}"


# Nodes are never changed: what is laid over them is a copy.
_kept = lru_cache(maxsize=_DOCUMENTS_KEPT)(_parsed)


def read_text(path: Path, most_bytes: int = MOST_BYTES, kind: str = "scenario") -> str:
    """A regular file's text, of this many bytes at most. Raises InputError."""
    name = shown(path)
    problem = regular_file(path)
    if problem:
        raise InputError(f"{name} {problem}")
    # Not blocking, and asked again once it is open: the path may have become a pipe meanwhile.
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{name} is a pipe or a device, not a regular file")
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > most_bytes:
        raise InputError(f"{name} has more than {most_bytes:,} bytes, which no {kind} needs")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8") from None


class _Composer(yaml.SafeLoader):
    """PyYAML's tree of nodes, given up as soon as it is too deep or has too many."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source, self.depth, self.count = source, 0, 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.count += 1
        event = self.peek_event()  # type: ignore[no-untyped-call]
        place = f"{self.source}:{event.start_mark.line + 1}"
        if getattr(event, "tag", None) is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise InputError(f"{place}: the tag {tag:.60} is not read; write the plain value")
        if self.depth > MOST_DEPTH:
            raise InputError(f"{place}: nested more than {MOST_DEPTH} deep, which no scenario needs")
        if self.count > 2 * MOST_VALUES:  # keys count here
            raise InputError(f"{place}: more than {MOST_VALUES:,} values, which no scenario needs")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Builder:
    """Nodes with values from PyYAML's nodes."""

    def __init__(self, source: str, folder: Path) -> None:
        self.source, self.folder, self.count = source, folder, 0
        # The nodes that are being built, and the keys that lead to the present one.
        self.open: list[int] = []
        self.keys: list[str] = []

    def build(self, node: yaml.Node, key_place: Place) -> Node:
        place = self._place(node)
        self.count += 1
        if id(node) in self.open:
            raise self._error(key_place, "this alias contains itself; write the value out")
        if self.count > MOST_VALUES or len(self.open) >= MOST_DEPTH:
            limit = f"{MOST_VALUES:,} values" if self.count > MOST_VALUES else f"{MOST_DEPTH} levels"
            raise self._error(key_place, f"more than {limit} once its aliases are written out")
        self.open.append(id(node))
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            value = [self._item(item, str(i), self._place(item)) for i, item in enumerate(node.value)]
        else:
            assert isinstance(node, yaml.ScalarNode)
            value = self._scalar(node, place)
        self.open.pop()
        return Node(value, place, key_place)

    def _item(self, node: yaml.Node, key: str, key_place: Place) -> Node:
        self.keys.append(key)
        item = self.build(node, key_place)
        self.keys.pop()
        return item

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.source, node.start_mark.line + 1, self.folder)

    def _error(self, place: Place, what: str) -> InputError:
        return InputError(f"{place}: {'.'.join(self.keys)}: {what}" if self.keys else f"{place}: {what}")

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        mapping: dict[str, Node] = {}
        for key, item in node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(place, "a key is a word, not a mapping or a list")
            if key.value == "<<":
                raise self._error(place, "<<: merge keys are not read; name another file with extends")
            if len(key.value) > 100 or not key.value.isprintable():
                raise self._error(place, f"{key.value!r:.40} is no key: at most 100 printable characters")
            if key.value in mapping:
                first = mapping[key.value].key_place.line
                raise self._error(place, f"{key.value} stands twice, first in line {first}; keep one")
            mapping[key.value] = self._item(item, key.value, place)
        return mapping

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        text = node.value
        if len(text) > MOST_CHARACTERS:
            raise self._error(place, f"a text of {len(text):,} characters; at most {MOST_CHARACTERS:,} will do")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise self._error(place, f"half a character (a lone surrogate) in {text!r:.40}")
        if node.style is not None:  # quoted, or a block: text, whatever it looks like
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            raise self._error(place, f"{text:.60} is not a finite number")
        return text
