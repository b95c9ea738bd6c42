"""The files and folders that a scenario names by path, and the digests of what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvferry.scenarios.resolve import path_keys

# The files that count, in a folder that a scenario names.
_HASHED = (".csv", ".json", ".npz", ".safetensors")
# Files whose digests are kept: points of a sweep share theirs.
_KEPT = 1024


def named_files(scenario: Mapping[str, Any]) -> dict[tuple[str, ...], Path]:
    """Returns what a resolved scenario, as plain values, names by path, by key."""
    found: dict[tuple[str, ...], Path] = {}
    for key in path_keys(scenario):
        holder: Any = scenario
        for part in key[:-1]:
            holder = holder.get(part) if isinstance(holder, Mapping) else None
        value = holder.get(key[-1]) if isinstance(holder, Mapping) else None
        if isinstance(value, str) and Path(value).is_absolute():
            found[key] = Path(value)
    return found


def content_digest(path: Path) -> str:
    """SHA-256, in hex, of a file, or of a folder's files with their names: measured tables, a model's config and
    weights. Raises OSError."""
    found = hashlib.sha256()
    for file in counted(path):
        if path.is_dir():
            found.update(file.relative_to(path).as_posix().encode() + b"\0")
        at = file.stat()
        found.update(_digest(file, at.st_size, at.st_mtime_ns))
    return found.hexdigest()


def counted(path: Path) -> list[Path]:
    """Returns the file itself, or the files of a folder that count."""
    return sorted(file for file in path.rglob("*") if file.suffix in _HASHED) if path.is_dir() else [path]


def portable_name(path: Path) -> str:
    """Returns what a table calls a file, wherever it lies: "1f0a2b3c4d5e/walk.csv", by its digest and its name."""
    return f"{content_digest(path)[:12]}/{path.name}"


def portable(value: Any) -> Any:
    """Returns a value with the portable names of the files that it names by absolute paths."""
    if isinstance(value, Mapping):
        return {key: portable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [portable(one) for one in value]
    return portable_name(Path(value)) if isinstance(value, str) and _is_there(value) else value


def _is_there(path: str) -> bool:
    """Returns whether a text is the absolute path of something."""
    try:
        return Path(path).is_absolute() and Path(path).exists()
    except (OSError, ValueError):  # longer than a path may be, or no path at all
        return False


@lru_cache(maxsize=_KEPT)
def _digest(file: Path, size: int, changed_ns: int) -> bytes:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()
