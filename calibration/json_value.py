"""Values of a JSON file that another program wrote; an error names the file and the key."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.specs.errors import InputError

MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class JsonValue:
    """A value and where it stands: a file, and the keys that lead there."""

    value: Any
    place: str

    def key(self, name: str) -> "JsonValue":
        """Raises InputError when this is no mapping with that key."""
        if not isinstance(self.value, dict) or name not in self.value:
            raise InputError(f"{self.place}: has no {name!r}; it holds {_brief(self.value)}")
        return JsonValue(
            self.value[name], f"{self.place}: {name}" if ": " not in self.place else f"{self.place}.{name}"
        )

    def get(self, name: str, otherwise: Any) -> "JsonValue":
        if isinstance(self.value, dict) and name in self.value:
            return self.key(name)
        return JsonValue(otherwise, self.place)

    def items(self) -> "Iterator[JsonValue]":
        """Raises InputError when this is no list."""
        if not isinstance(self.value, list):
            raise InputError(f"{self.place}: a list is needed; it holds {_brief(self.value)}")
        return (JsonValue(item, f"{self.place}[{n}]") for n, item in enumerate(self.value))

    def number(self, *, least: float = 0.0, most: float = 1e18) -> float:
        """Raises InputError when this is no number between."""
        value = self.value
        # A whole number may have hundreds of digits: more than a float can hold. It can be compared all the same.
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise InputError(f"{self.place}: {_brief(value)} is not a number")
        if not least <= value <= most:
            raise InputError(f"{self.place}: {_brief(value)} does not lie between {least:g} and {most:g}")
        return float(value)


def read_json(path: Path) -> Any:
    """The content of a JSON file, or of JSON Lines as a list. Raises InputError, naming the file."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are read")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text; JSON is needed") from None
    # fio prints its warnings before the JSON, into the same file.
    if text.lstrip()[:1] not in ("{", "[") and "\n{" in text:
        text = text[text.index("\n{") :]
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[0].startswith("{") or not lines[0].rstrip().endswith("}"):
            raise InputError(f"{path}: is not JSON: {error}") from None
    try:
        return [json.loads(line, parse_constant=_refuse) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is neither JSON nor JSON Lines: {error}") from None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return f"keys {', '.join(map(str, list(value)[:6]))}" if value else "no keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"
