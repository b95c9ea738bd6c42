"""A log beside a file with KV: with it, the file can be read after the process that wrote it was killed."""

import fcntl
import os
from pathlib import Path

from kvferry.disk import log_frames
from kvferry.disk.kv_record import HEADER, PROMPTS, STEP, KvHeader, KvRecord
from kvferry.disk.opened_file import BLOCK_BYTES
from kvferry.specs.errors import InputError

_TAG = b"KVFERRY KV FILE\n"


def log_of(path: Path) -> Path:
    """The log's place beside its file."""
    return path.parent / (path.name + ".log")


def last_block(identity: str) -> bytes:
    """What lies behind the KV: which log is the file's own."""
    return (_TAG + identity.encode()).ljust(BLOCK_BYTES, b"\0")


def check_own(path: Path) -> None:
    """Raises InputError where a file or a log would be replaced that no run has left there."""
    for place, own in ((path, _ends_as_own), (log_of(path), log_frames.begins_a_log)):
        try:
            foreign = place.is_file() and place.stat().st_size > 0 and not own(place)
        except OSError as error:
            raise InputError(f"live.kv_file: {place} cannot be read: {error.strerror}") from None
        if foreign:
            raise InputError(f"live.kv_file: {place} is nothing that a run has left, and would be lost; name another")


def _ends_as_own(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BLOCK_BYTES))
        return file.read(len(_TAG)) == _TAG


class KvLog:
    """Append-only. A record is in the system's hands once a call returns, and outlives the process; it is not made
    sure that it outlives the power.

    Whoever writes the file writes a step's record *before* any of the step's bytes: then the log has what the file
    lacks, or has in part. While this is open, the log is locked for others. Threads take turns.
    """

    def __init__(self, path: Path) -> None:
        """Take the place of a file's log; one that lies there is no more. InputError where it cannot be made, or
        another run is writing it."""
        self.path, self.n_bytes = log_of(path), 0
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(f"live.kv_file: {self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
        except BlockingIOError:
            os.close(self._fd)
            raise InputError(f"live.kv_file: {path} is being written by another run; name another file") from None
        except OSError as error:
            os.close(self._fd)
            raise InputError(f"live.kv_file: {self.path} cannot be written: {error.strerror}") from None

    def begin(self, header: KvHeader) -> None:
        """Once the file is there. Raises StorageFull, StorageError, as all below."""
        self._append(HEADER, header.packed())

    def prompts(self, record: KvRecord) -> None:
        """A layer of the prompts is about to be written."""
        self._append(PROMPTS, record.packed())

    def step(self, record: KvRecord) -> None:
        """A token has passed all layers; what it changes is about to be written."""
        self._append(STEP, record.packed())

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "KvLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, kind: bytes, content: bytes) -> None:
        self.n_bytes = log_frames.append(self._fd, self.path, self.n_bytes, kind, content)
