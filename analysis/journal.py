"""Rows on disk the moment they are known: a file to which one line is appended after the other."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from types import NoneType
from typing import Any

from kvferry.specs.errors import KvferryError

Row = Mapping[str, Any]
SUFFIX = ".rows"
# So much of the time may go into waiting for the disk: on a slow one, several rows share a wait.
_SYNCED_SHARE = 0.02
_WANTED = ("key", "outcome", "version")


class Journal:
    """A file of rows that is appended to. Every line bears a checksum, so that a line which is not whole is noticed.

    After ``add`` a row survives the death of this process, and soon after, by ``_SYNCED_SHARE``, that of the computer.
    """

    def __init__(self, folder: Path) -> None:
        """A new file in the folder, which is made if it is missing. Raises KvferryError if it cannot be written."""
        self.path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except OSError as error:
            raise KvferryError(f"cannot write to {folder}: {error.strerror}") from error
        self._sync_from_s = 0.0

    def add(self, row: Row) -> None:
        """Append a row. Raises KvferryError if the disk is full."""
        text = json.dumps(dict(row)).encode()
        line = memoryview(b"%08x %b\n" % (zlib.crc32(text), text))
        try:
            while line:
                line = line[os.write(self._file, line) :]
            now_s = perf_counter()
            if now_s >= self._sync_from_s:
                os.fsync(self._file)
                took_s = perf_counter() - now_s
                self._sync_from_s = now_s + took_s / _SYNCED_SHARE
        except OSError as error:
            raise KvferryError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Raises KvferryError if what was added could not be brought to the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise KvferryError(f"cannot write {self.path}: {error.strerror}") from error
        finally:
            os.close(self._file)


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a journal, also while it is written; without a last line that is not whole, as a killed process
    leaves it. Nothing if there is no such file.

    Raises ValueError if another line is damaged or no row, OSError if the file cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield _row(line)


def _row(line: bytes) -> Row:
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:-1]) or line[8:9] != b" ":
            raise ValueError("a line differs from its checksum")
        row = json.loads(line[9:])
        if not (isinstance(row, dict) and all(isinstance(row[column], str) for column in _WANTED)):
            raise ValueError("a row has no key, outcome or version")
        if not all(isinstance(value, str | int | float | NoneType) for value in row.values()):
            raise ValueError("a row holds more than text, numbers and truth values")
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"a line is no row: {error}") from error
    return row
