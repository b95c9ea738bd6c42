"""Frames of an append-only log: each with its length and checksum, so that a frame that was cut off and one that
was changed are different errors."""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvferry.disk.opened_file import failed
from kvferry.specs.errors import InputError

# What a frame is, the bytes of its content and their CRC-32; then the CRC-32 of these 20 bytes.
_HEAD = struct.Struct("<4s4sQI")
_SUM = struct.Struct("<I")
_MARK = b"KVFR"
HEAD_BYTES = _HEAD.size + _SUM.size
# Read at once while a frame's content is checked.
_CHUNK_BYTES = 1 << 20


class Frame(NamedTuple):
    """``offset`` and ``n_bytes`` of the content in the log."""

    kind: bytes
    offset: int
    n_bytes: int


def append(fd: int, path: Path, at: int, kind: bytes, content: bytes) -> int:
    """Write a frame behind the `at` bytes of a log; how many there are then. `kind`: four bytes. The system has it once
    this returns, whatever becomes of the process. Raises StorageFull and other StorageErrors; a part of the frame may
    be there then."""
    head = _HEAD.pack(_MARK, kind, len(content), zlib.crc32(content))
    whole = memoryview(head + _SUM.pack(zlib.crc32(head)) + content)
    done = 0
    while done < len(whole):
        try:
            done += os.pwrite(fd, whole[done:], at + done)
        except OSError as error:
            raise failed("write", path, at + done, len(whole) - done, error) from error
    return at + len(whole)


def begins_a_log(path: Path) -> bool:
    """A file's first bytes are a frame's. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


def frames(file: BinaryIO, path: Path) -> Iterator[Frame]:
    """The whole frames of a log. It ends where the last one does: bytes behind it begin a frame that was cut off.
    Raises InputError for a frame that is as long as it says, and was changed."""
    n_bytes, at = os.fstat(file.fileno()).st_size, 0
    while n_bytes - at >= HEAD_BYTES:
        head = _read(file, path, at, HEAD_BYTES)
        mark, kind, length, content_sum = _HEAD.unpack_from(head)
        if mark != _MARK or _SUM.unpack_from(head, _HEAD.size) != (zlib.crc32(head[: _HEAD.size]),):
            raise InputError(f"{path}: no frame begins at byte {at}: this is no log of a KV file, or it was changed")
        if length > n_bytes - at - HEAD_BYTES:
            return
        at += HEAD_BYTES
        if _sum_of(file, path, at, length) != content_sum:
            raise InputError(f"{path}: the {length:,} bytes at byte {at} are not the ones that were written there")
        yield Frame(kind, at, length)
        at += length


def content_of(file: BinaryIO, path: Path, frame: Frame) -> bytes:
    return _read(file, path, frame.offset, frame.n_bytes)


def _sum_of(file: BinaryIO, path: Path, at: int, n_bytes: int) -> int:
    found = 0
    for begin in range(at, at + n_bytes, _CHUNK_BYTES):
        found = zlib.crc32(_read(file, path, begin, min(_CHUNK_BYTES, at + n_bytes - begin)), found)
    return found


def _read(file: BinaryIO, path: Path, at: int, n_bytes: int) -> bytes:
    try:
        file.seek(at)
        found = file.read(n_bytes)
    except OSError as error:
        raise InputError(f"{path}: cannot be read at byte {at}: {error.strerror}") from None
    if len(found) < n_bytes:
        raise InputError(f"{path}: ends at byte {at + len(found)}: it was cut while it was read")
    return found
