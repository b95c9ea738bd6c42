"""Traces made of arrays: one .npz file with a JSON tag that says what it holds. No pickle."""

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from kvferry.specs.errors import InputError

FORMAT = "kvferry-trace"
VERSION = 1
# What a file may unpack to: a 100K-token context of 40 layers and 8 heads needs some 0.4 MB.
MAX_UNPACKED_BYTES = 2**30

Trace = TypeVar("Trace")

# What zipfile, numpy, json and a record's own checks raise at bytes that are not what they should be.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    SyntaxError,
    RuntimeError,
    EOFError,
    ArithmeticError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def save_arrays(path: Path, kind: str, **arrays: np.ndarray) -> None:
    """Write arrays under their names, with the tag {"format", "version", "kind"}; same arrays, same bytes.

    Raises OSError, and leaves nothing of the file then.
    """
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            _write(file, kind, arrays)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: Path, key: str) -> None:
    """Raise InputError, which names `key`, where ``save_arrays`` could not write this file."""
    if path.is_dir():
        raise InputError(f"{key}: {path} is a folder; name a file")
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.open("wb").close()
        unfinished.unlink()
    except OSError as error:
        raise InputError(f"{key}: {path} cannot be written: {error.strerror}") from None


def packed_arrays(kind: str, **arrays: np.ndarray) -> bytes:
    """What ``save_arrays`` writes."""
    content = io.BytesIO()
    _write(content, kind, arrays)
    return content.getvalue()


def _write(file: IO[bytes], kind: str, arrays: dict[str, np.ndarray]) -> None:
    tag = json.dumps({"format": FORMAT, "version": VERSION, "kind": kind})
    members: dict[str, Any] = {"tag": np.array(tag), **arrays}
    np.savez_compressed(file, allow_pickle=False, **members)


def load_arrays(path: Path, kind: str, names: Sequence[str], make: Callable[..., Trace]) -> Trace:
    """What `make` makes of the named arrays. Raises InputError when the file is not such a trace."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise InputError(f"{path}: unpacks to {unpacked:,} bytes, at most {MAX_UNPACKED_BYTES:,} are read")
        with np.load(path, allow_pickle=False) as stored:
            tag = json.loads(str(stored["tag"]))
            if (tag["format"], tag["version"]) != (FORMAT, VERSION):
                raise InputError(f"{path}: tagged {tag!r:.100}, not {FORMAT!r} of version {VERSION}")
            if tag["kind"] != kind:
                raise InputError(f"{path}: holds a {tag['kind']!s:.20} trace; a {kind} trace is needed")
            return make(*(stored[name] for name in names))
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a {kind} trace: {error}") from None
