"""A storage file, read and written past the page cache, with many commands under way at once."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import Any

import numpy as np

from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError, KvferryError

# What direct I/O must be aligned to, in the file and in memory: a multiple of every common device's own block.
BLOCK_BYTES = 4096
# Free buffers that are kept, so that reading need not fault in new pages each time.
_KEPT_BYTES = 256 << 20

# One command: where in the file, where in the memory that is filled or written, and how many bytes.
Command = tuple[int, int, int]
# What does one.
Do = Callable[[memoryview, Command], None]


class StorageError(KvferryError):
    """The file could not be read or written: which, where, and why."""


class StorageFull(StorageError):
    """There is no room left for what was to be written."""


def aligned_memory(n_bytes: int) -> memoryview:
    """New memory that direct I/O takes as it is: what is written from elsewhere has to be copied first."""
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Large pages are pinned in fewer steps: half as much again for large commands, where the system has them.
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class Data:
    """What was read, until `release`.

    Released memory spares the next read new pages, which cost as much as a fast device does; what is not released
    goes when nobody looks at it any more.
    """

    def __init__(self, whole: memoryview, places: list[tuple[int, int]], give_back: Callable[[], None]) -> None:
        self._whole = whole
        self._places = places
        self._give_back: Callable[[], None] | None = give_back

    @property
    def views(self) -> list[memoryview]:
        """Each extent's bytes, in order, as they lie in memory."""
        return [self._whole[at : at + length] for at, length in self._places]

    def __bytes__(self) -> bytes:
        return b"".join(self.views)

    def release(self) -> None:
        """Have the memory used again: nobody may look at it any more. Releasing twice is harmless."""
        give_back, self._give_back = self._give_back, None
        self._places = []
        if give_back is not None:
            give_back()


class Storage:
    """One file of fixed size. Every extent is a command of its own, or several where it exceeds `command_bytes`.

    `depth` commands are under way at once. `note` says why the page cache is in the way, where the file system does not
    allow direct I/O: what is measured then is not the device; None otherwise.

    Extents need no alignment: reading, whole blocks around them are read; writing, the blocks at their edges are read,
    changed and written. Errors are StorageError, and name the file and the offset.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        writable: bool = False,
        depth: int = 8,
        command_bytes: int = 1 << 20,
        direct: bool = True,
    ) -> None:
        """Open a file. Raises InputError when there is none, or the settings make no sense."""
        if depth < 1 or command_bytes < BLOCK_BYTES or command_bytes % BLOCK_BYTES:
            raise InputError(
                f"storage needs a depth of at least 1 and commands of a multiple of {BLOCK_BYTES} bytes, "
                f"not {depth} and {command_bytes}"
            )
        self.path = Path(path)
        self._command_bytes = command_bytes
        fd, self.note = _open(self.path, writable, direct)
        self._fd: int | None = fd
        self._block = 1 if self.note else BLOCK_BYTES
        self.size_bytes = os.fstat(fd).st_size
        if writable and self.size_bytes % self._block:
            os.close(fd)
            raise InputError(f"{path} has {self.size_bytes} bytes; to be written it needs a multiple of {self._block}")
        # Held while blocks at the edges of extents are read, changed and written.
        self._edges = Lock()
        self._free: dict[int, list[memoryview]] = {}
        self._kept_bytes = 0
        self._free_lock = Lock()
        self._own = local()
        # The caller's thread is one of them.
        self._helpers = [Thread(target=self._help, name="kvferry storage", daemon=True) for _ in range(depth - 1)]
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        for helper in self._helpers:
            helper.start()

    @classmethod
    def create(cls, path: Path | str, n_bytes: int, **settings: Any) -> "Storage":
        """Make a file of at least so many zero bytes, and open it for writing; settings as for opening.

        The file is there under its name only once it has all its room. Raises StorageFull when there is none.
        """
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        n_bytes = max(BLOCK_BYTES, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        try:
            fd = os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(fd, 0, n_bytes)
            finally:
                os.close(fd)
            partial.replace(path)
        except OSError as error:
            raise _failed("make", path, 0, n_bytes, error) from error
        finally:
            partial.unlink(missing_ok=True)
        return cls(path, writable=True, **settings)

    def read(self, extents: Extents) -> Data:
        """The bytes of these extents. Raises StorageError when the file ends before they do."""
        block = self._block
        commands: list[Command] = []
        places: list[tuple[int, int]] = []
        at = 0
        for offset, length in self._inside(extents):
            before = offset % block
            n_bytes = -(-(before + length) // block) * block if length else 0
            places.append((at + before, length))
            self._command(commands, offset - before, at, n_bytes)
            at += n_bytes
        memory = self._take(at)
        self._run(self._fill, memory, commands)
        return Data(memory, places, lambda: self._give_back(memory))

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Write the extents, whose bytes lie in `data` one after the other.

        Raises StorageFull when the device is, and other StorageErrors; some of the extents may be written by then.
        """
        source = memoryview(data).cast("B")
        if len(source) != extents.n_bytes:
            raise InputError(f"{extents.n_bytes} bytes are to be written to {self.path}, and {len(source)} were given")
        block = self._block
        base = _address(source)
        whole: list[Command] = []
        edges: list[Command] = []
        aligned = True
        at = 0
        for offset, length in self._inside(extents):
            head = min(-offset % block, length)
            body = (length - head) // block * block
            tail = length - head - body
            if head:
                edges.append((offset, at, head))
            if tail:
                edges.append((offset + head + body, at + head + body, tail))
            self._command(whole, offset + head, at + head, body)
            aligned = aligned and not (body and (base + at + head) % block)
            at += length
        self._run(self._put if aligned else self._put_copy, source, whole)
        with self._edges:
            for edge in edges:
                self._put_edge(source, edge)

    def close(self) -> None:
        """Wait for what is under way, and close the file; closing twice is harmless."""
        for _ in self._helpers:
            self._batches.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers = []
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> "Storage":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- commands ------------------------------------------------------------------------------------------------

    def _inside(self, extents: Extents) -> Iterator[tuple[int, int]]:
        for offset, length in zip(extents.offsets, extents.lengths, strict=True):
            if offset < 0 or length < 0 or offset + length > self.size_bytes:
                raise StorageError(
                    f"{self.path} has {self.size_bytes} bytes; {length} at offset {offset} do not lie inside"
                )
            yield offset, length

    def _command(self, commands: list[Command], offset: int, at: int, n_bytes: int) -> None:
        step = self._command_bytes
        while n_bytes > step:
            commands.append((offset, at, step))
            offset, at, n_bytes = offset + step, at + step, n_bytes - step
        if n_bytes:
            commands.append((offset, at, n_bytes))

    def _run(self, do: Do, memory: memoryview, commands: Sequence[Command]) -> None:
        """Do all commands, as many at once as there are threads. Raises the first error, when none is under way."""
        batch = _Batch(do, memory, commands, threads=max(1, min(len(commands), 1 + len(self._helpers))))
        for _ in range(batch.threads - 1):
            self._batches.put(batch)
        batch.work()
        batch.finish()

    def _help(self) -> None:
        while (batch := self._batches.get()) is not None:
            batch.work()
            del batch

    def _fill(self, memory: memoryview, command: Command) -> None:
        """Read until the memory is full, or the file ends where it always did."""
        assert self._fd is not None
        offset, at, n_bytes = command
        wanted = min(n_bytes, self.size_bytes - offset)
        got = 0
        while got < wanted:
            try:
                n = os.preadv(self._fd, (memory[at + got : at + n_bytes],), offset + got)
            except OSError as error:
                raise _failed("read", self.path, offset + got, wanted - got, error) from error
            got += n
            # Direct reads stop inside a block only at the end of the file.
            if got < wanted and (n == 0 or n % self._block):
                raise StorageError(
                    f"{self.path} ends at byte {offset + got}, {wanted - got} bytes before what was to be read at "
                    f"offset {offset}; it had {self.size_bytes} bytes when it was opened and has been cut since"
                )

    def _put(self, memory: memoryview, command: Command) -> None:
        assert self._fd is not None
        offset, at, n_bytes = command
        done = 0
        while done < n_bytes:
            try:
                done += os.pwritev(self._fd, (memory[at + done : at + n_bytes],), offset + done)
            except OSError as error:
                raise _failed("write", self.path, offset + done, n_bytes - done, error) from error

    def _put_copy(self, memory: memoryview, command: Command) -> None:
        """Write what does not lie on whole blocks in memory."""
        offset, at, n_bytes = command
        copy = self._own_buffer()
        copy[:n_bytes] = memory[at : at + n_bytes]
        self._put(copy, (offset, 0, n_bytes))

    def _put_edge(self, memory: memoryview, command: Command) -> None:
        """Write a part of one block."""
        offset, at, n_bytes = command
        inside = offset % self._block
        block = self._own_buffer()
        self._fill(block, (offset - inside, 0, self._block))
        block[inside : inside + n_bytes] = memory[at : at + n_bytes]
        self._put(block, (offset - inside, 0, self._block))

    # --- memory --------------------------------------------------------------------------------------------------

    def _own_buffer(self) -> memoryview:
        """Aligned memory of this thread, for one command."""
        if not hasattr(self._own, "buffer"):
            self._own.buffer = aligned_memory(self._command_bytes)
        buffer: memoryview = self._own.buffer
        return buffer

    def _take(self, n_bytes: int) -> memoryview:
        # Few sizes, so that what is given back fits again.
        size = max(1 << 16, 1 << max(0, n_bytes - 1).bit_length())
        with self._free_lock:
            if self._free.get(size):
                self._kept_bytes -= size
                return self._free[size].pop()
        return aligned_memory(size)

    def _give_back(self, memory: memoryview) -> None:
        with self._free_lock:
            if self._kept_bytes + len(memory) <= _KEPT_BYTES:
                self._kept_bytes += len(memory)
                self._free.setdefault(len(memory), []).append(memory)


class _Batch:
    """Commands that several threads take from one list."""

    def __init__(self, do: Do, memory: memoryview, commands: Sequence[Command], threads: int) -> None:
        self.threads = threads
        self._do = do
        self._memory = memory
        # Threads share it: a list's iterator hands out every item once.
        self._todo = iter(commands)
        self._error: BaseException | None = None
        self._working = threads
        self._lock, self._done = Lock(), Lock()
        self._done.acquire()

    def work(self) -> None:
        try:
            for command in self._todo:
                if self._error is not None:
                    break
                self._do(self._memory, command)
        except BaseException as error:
            self._error = self._error or error
        with self._lock:
            self._working -= 1
            if not self._working:
                self._done.release()

    def finish(self) -> None:
        """Wait for every thread; raise what one of them met."""
        self._done.acquire()
        if self._error is not None:
            raise self._error


def _open(path: Path, writable: bool, direct: bool) -> tuple[int, str | None]:
    """A descriptor, and why it goes through memory rather than to a device, if it does."""
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
    kind = _file_system(os.fstat(direct_fd).st_dev)
    in_memory = kind in ("tmpfs", "ramfs")
    return direct_fd, f"{path} lies in memory ({kind}): what is measured is no storage device" if in_memory else None


def _file_system(device: int) -> str | None:
    """What kind of file system is mounted from a device number, where the system tells."""
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


def _address(memory: memoryview) -> int:
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


def _failed(action: str, path: Path, offset: int, n_bytes: int, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why = "no file may be as large" if error.errno == errno.EFBIG else "the device is full"
        return StorageFull(f"cannot {action} {n_bytes} bytes of {path} at offset {offset}: {why}")
    return StorageError(f"cannot {action} {n_bytes} bytes of {path} at offset {offset}: {error.strerror}")
