"""Logs with one JSON object a line. Nothing of them is trusted: an error names file and line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvferry.specs.errors import InputError

MOST_TOKENS = 10_000_000


def objects(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of a file with one JSON object a line."""
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text.lstrip("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{line}: not JSON: {why_not_json(error)}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{line}: {text[:40]!r} is no object, as {...} is")
        yield line, row


def why_not_json(error: ValueError | RecursionError) -> str:
    """Returns what is wrong with a text, in a few words."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    # Python refuses to read longer numbers.
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"


def number_at(path: Path, line: int, row: dict[str, Any], key: str, most: float) -> float:
    """Returns the number of a key, from 0 to `most`. Raises InputError."""
    value = row.get(key)
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= most:
        raise InputError(f"{path}:{line}: {key} {str(value)[:40]!r} is no number from 0 to {most:g}")
    return number


def tokens_at(path: Path, line: int, row: dict[str, Any], key: str, least: int = 1) -> int:
    """Returns the number of tokens of a key. Raises InputError."""
    number = number_at(path, line, row, key, MOST_TOKENS)
    if number != int(number) or number < least:
        raise InputError(f"{path}:{line}: {key} of {number:g} tokens; a whole number from {least} on would do")
    return int(number)
