"""Traces made of arrays: one .npz file with a JSON tag that says what it holds. No pickle."""

import io
import json
import math
import secrets
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.system.whole_file import write_file

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
    AttributeError,
    SyntaxError,
    RuntimeError,
    EOFError,
    ArithmeticError,
    MemoryError,
    LookupError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def save_arrays(path: Path, kind: str, **arrays: np.ndarray) -> None:
    """Write arrays under their names, with the tag {"format", "version", "kind"}; same arrays, same bytes.

    Raises KvferryError where the file cannot be written, and leaves nothing of it then.
    """
    write_file(path, packed_arrays(kind, **arrays))


def check_writable(path: Path, key: str) -> None:
    """Raise InputError, which names `key`, where ``save_arrays`` could not write this file."""
    if path.is_dir():
        raise InputError(f"{key}: {path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{key}: {path} is a device or a pipe; name a file")
    # A name of its own, and never a file that lies there: whoever names a path may not cost anybody another file.
    probe = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        probe.open("xb").close()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{key}: {path} cannot be written: {error.strerror}") from None


def check_replaced(path: Path, key: str, kind: str) -> None:
    """Raise InputError, which names `key`, where a file would be lost that is no earlier recording of this kind."""
    if not path.is_file():
        return
    try:
        own = peek_arrays(path)[0] == kind
    except InputError:
        own = False
    if not own:
        raise InputError(f"{key}: {path} is no recording of {kind}, and would be lost; name another file")


def packed_arrays(kind: str, **arrays: np.ndarray) -> bytes:
    """What ``save_arrays`` writes."""
    content = io.BytesIO()
    tag = json.dumps({"format": FORMAT, "version": VERSION, "kind": kind})
    members: dict[str, Any] = {"tag": np.array(tag), **arrays}
    np.savez_compressed(content, allow_pickle=False, **members)
    return content.getvalue()


def load_arrays(
    path: Path, kind: str, names: Sequence[str], make: Callable[..., Trace], optional: Sequence[str] = ()
) -> Trace:
    """What `make` makes of the named arrays, and of those optional ones, by name, that the file has. Raises InputError
    when the file is not such a trace."""
    try:
        with _opened(path) as archive:
            tag = _tag(archive)
            if (tag["format"], tag["version"]) != (FORMAT, VERSION):
                raise InputError(f"{path}: tagged {tag!r:.100}, not {FORMAT!r} of version {VERSION}")
            if tag["kind"] != kind:
                raise InputError(f"{path}: holds a {tag['kind']!s:.20} trace; a {kind} trace is needed")
            there = [name for name in optional if f"{name}.npy" in archive.namelist()]
            return make(*(_array(archive, name) for name in names), **{name: _array(archive, name) for name in there})
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a {kind} trace: {_reason(error)}") from None


def peek_arrays(path: Path) -> tuple[str, dict[str, str]]:
    """(kind, array -> its type and shape) of a chunks, selections or keys trace. Raises InputError."""
    try:
        with _opened(path) as archive:
            names = sorted(name.removesuffix(".npy") for name in archive.namelist())
            kind = str(_tag(archive)["kind"])
            headers = {name: _header(archive, name) for name in names if name != "tag"}
            return kind, {name: f"{dtype}{list(shape)}" for name, (shape, dtype) in headers.items()}
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a trace of arrays: {_reason(error)}") from None


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The file as an archive that unpacks to a bounded size. Raises InputError and what zipfile raises."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise InputError(f"{path}: unpacks to {unpacked:,} bytes, at most {MAX_UNPACKED_BYTES:,} are read")
        yield archive


def _tag(archive: zipfile.ZipFile) -> Any:
    return json.loads(str(_array(archive, "tag")))


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array by name, once its header is known to be good."""
    _header(archive, name)
    with archive.open(f"{name}.npy") as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """(Shape, type) of an array. ValueError where it claims more values than its bytes hold: numpy would reserve
    memory for all that is claimed."""
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed in a way that numpy does not use")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{name} is an array of format {version}; 1.0 and 2.0 are read")
        shape, _, dtype = _HEADERS[version](file)
        left = member.file_size - file.tell()
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{name} holds values of type {dtype}; numbers are read")
    if math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"{name} claims {math.prod(shape):,} values of {dtype.itemsize} bytes and has {left:,} bytes")
    return shape, dtype


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _reason(error: BaseException) -> str:
    """In a line: what numpy says of a header may quote all of it."""
    what = " ".join(str(error).split())
    return f"{what[:200]}" if what else type(error).__name__
