"""An open storage file, and the commands that read and write it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError, KvferryError
from kvferry.system.aligned_memory import aligned_memory

# The alignment of direct I/O in the file and in memory: a multiple of every common device's own block.
BLOCK_BYTES = 4096


class StorageError(KvferryError):
    """The file could not be read or written. The message says which file, where, and why."""


class StorageFull(StorageError):
    """The device has no room left for a write."""


class Commands(NamedTuple):
    """Reads or writes, int64[n] each: offsets in the file, places in memory, and sizes in bytes."""

    offsets: np.ndarray
    ats: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, offsets: np.ndarray, ats: np.ndarray, sizes: np.ndarray, most_bytes: int) -> "Commands":
        """The commands for pieces of any size: none for an empty piece, several for a large one."""
        if sizes.size and sizes.min() > 0 and sizes.max() <= most_bytes:
            return cls(offsets, ats, sizes)
        counts = -(-sizes // most_bytes)
        piece = np.repeat(np.arange(len(sizes)), counts)
        before = (np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)) * most_bytes
        return cls(offsets[piece] + before, ats[piece] + before, np.minimum(most_bytes, sizes[piece] - before))

    def one_by_one(self) -> Iterator[tuple[int, int, int]]:
        """Offset, place and size of each command, as Python numbers."""
        return zip(self.offsets.tolist(), self.ats.tolist(), self.sizes.tolist(), strict=True)


def inside(path: Path, size_bytes: int, extents: Extents) -> tuple[np.ndarray, np.ndarray]:
    """Returns the extents' offsets and lengths. Raises StorageError for one that does not lie inside the file."""
    offsets, lengths = extents.arrays
    if len(offsets):
        # Seen as unsigned, negative numbers are too large.
        outside = (lengths.view(np.uint64) > size_bytes) | (
            offsets.view(np.uint64) > (size_bytes - lengths).view(np.uint64)
        )
        first = int(outside.argmax())
        if outside[first]:
            raise StorageError(
                f"{path} has {size_bytes} bytes; {lengths[first]} at offset {offsets[first]} do not lie inside"
            )
    return offsets, lengths


class StorageFile:
    """A file opened past the page cache, where the file system allows that; `note` says so where it does not.

    Raises InputError when there is no such file.
    """

    def __init__(self, path: Path, writable: bool, direct: bool) -> None:
        self.path = path
        self.fd, self.note = _open(path, writable, direct)
        self.block_bytes = 1 if self.note else BLOCK_BYTES
        self.size_bytes = os.fstat(self.fd).st_size

    def check_size(self) -> None:
        """Raise StorageError when the file was cut since it was opened."""
        n_bytes = os.fstat(self.fd).st_size
        if n_bytes < self.size_bytes:
            raise StorageError(
                f"{self.path} ends at byte {n_bytes}; "
                f"it had {self.size_bytes} bytes when it was opened and has been cut since"
            )

    def fill(self, memory: memoryview, offset: int, at: int, n_bytes: int) -> None:
        """Read until the memory is full, or the file ends where it always did. Raises StorageError."""
        wanted = min(n_bytes, self.size_bytes - offset)
        got = 0
        while got < wanted:
            try:
                n = os.preadv(self.fd, (memory[at + got : at + n_bytes],), offset + got)
            except OSError as error:
                raise failed("read", self.path, offset + got, wanted - got, error) from error
            got += n
            # Direct reads stop inside a block only at the end of the file.
            if got < wanted and (n == 0 or n % self.block_bytes):
                raise StorageError(
                    f"{self.path} ends at byte {offset + got}, {wanted - got} bytes before what was to be read at "
                    f"offset {offset}; it had {self.size_bytes} bytes when it was opened and has been cut since"
                )

    def put(self, memory: memoryview, offset: int, at: int, n_bytes: int) -> None:
        """Write all of it. Raises StorageFull, StorageError."""
        done = 0
        while done < n_bytes:
            try:
                done += os.pwritev(self.fd, (memory[at + done : at + n_bytes],), offset + done)
            except OSError as error:
                raise failed("write", self.path, offset + done, n_bytes - done, error) from error

    def close(self) -> None:
        os.close(self.fd)


def make_room(path: Path, n_bytes: int) -> None:
    """Make a file of this many zero bytes. It is there under its name only once it has all its room: StorageFull."""
    partial = path.with_name(path.name + ".partial")
    try:
        fd = os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(fd, 0, n_bytes)
        finally:
            os.close(fd)
        partial.replace(path)
    except OSError as error:
        raise failed("make", path, 0, n_bytes, error) from error
    finally:
        partial.unlink(missing_ok=True)


def failed(action: str, path: Path, offset: int, n_bytes: int, error: OSError) -> StorageError:
    """The StorageError for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why = "no file may be as large" if error.errno == errno.EFBIG else "the device is full"
        return StorageFull(f"cannot {action} {n_bytes} bytes of {path} at offset {offset}: {why}")
    return StorageError(f"cannot {action} {n_bytes} bytes of {path} at offset {offset}: {error.strerror}")


def _open(path: Path, writable: bool, direct: bool) -> tuple[int, str | None]:
    """A descriptor, and why reads come from memory rather than from a device, if they do."""
    if not path.is_file():
        raise InputError(f"there is no storage file {path}")
    flags = os.O_RDWR if writable else os.O_RDONLY
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise InputError(f"cannot open {path}: {error.strerror}") from error
    if not direct:
        return fd, "the page cache is used, as was asked for"
    try:
        direct_fd = os.open(path, flags | os.O_DIRECT)
        try:
            os.preadv(direct_fd, (aligned_memory(BLOCK_BYTES),), 0)
        except OSError:
            os.close(direct_fd)
            raise
    except (OSError, AttributeError):  # AttributeError: systems that know no direct I/O
        return fd, f"the file system of {path} refuses direct I/O: what is measured includes the page cache"
    os.close(fd)
    kind = file_system(os.fstat(direct_fd).st_dev)
    in_memory = kind in ("tmpfs", "ramfs")
    return direct_fd, f"{path} lies in memory ({kind}): what is measured is no storage device" if in_memory else None


def file_system(device: int) -> str | None:
    """The kind of file system with this device number; None where the system does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        # id, parent, device, root, mount point, options ..., "-", type, source
        fields, _, kind = line.partition(" - ")
        if fields.split()[2] == number:
            return kind.split()[0]
    return None
