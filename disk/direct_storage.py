"""A storage file, read and written past the page cache, with many commands under way at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import Any

import numpy as np

from kvferry.disk.block_sums import BlockSums, blocks_of
from kvferry.disk.opened_file import (
    BLOCK_BYTES,
    Commands,
    StorageError,
    StorageFile,
    StorageFull,
    inside,
    make_room,
)
from kvferry.disk.parts_of_blocks import PartsOfBlocks
from kvferry.disk.threads import Threads
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError
from kvferry.system.aligned_memory import Buffers, address, aligned_memory

__all__ = ["BLOCK_BYTES", "Data", "Storage", "StorageError", "StorageFull", "aligned_memory"]

_MOST_COMMAND_BYTES = 1 << 30


class Data:
    """Bytes that were read, valid until `release`.

    The next read uses released memory again. That spares new pages, which cost as much time as a fast device takes.
    Memory that is not released is freed with its last reference.
    """

    def __init__(self, whole: memoryview, ats: np.ndarray, lengths: np.ndarray, give_back: Callable[[], None]) -> None:
        self._whole = whole
        self._ats, self._lengths = ats, lengths
        self._give_back: Callable[[], None] | None = give_back

    @property
    def views(self) -> list[memoryview]:
        """Each extent's bytes, in order, as they lie in memory."""
        return [
            self._whole[at : at + length] for at, length in zip(self._ats.tolist(), self._lengths.tolist(), strict=True)
        ]

    def rows(self) -> np.ndarray:
        """Extents of equal length as uint8[extents, length]; a view of the memory where they lie evenly in it. Of
        several lengths, each is as many rows as it is times their common divisor."""
        n = len(self._ats)
        if not n:
            return np.empty((0, 0), np.uint8)
        length, whole = int(self._lengths[0]), np.frombuffer(self._whole, np.uint8)
        if (self._lengths != length).any():
            return np.frombuffer(bytes(self), np.uint8).reshape(-1, int(np.gcd.reduce(self._lengths)))
        apart = int(self._ats[1] - self._ats[0]) if n > 1 else length
        if (np.diff(self._ats) == apart).all():
            begin = int(self._ats[0])
            return np.lib.stride_tricks.as_strided(whole[begin:], (n, length), (apart, 1))
        return whole[self._ats[:, None] + np.arange(length)]

    def __bytes__(self) -> bytes:
        return b"".join(self.views)

    def release(self) -> None:
        """Give the memory back for the next read: no view of it may be used any more. Releasing twice is harmless."""
        give_back, self._give_back = self._give_back, None
        self._ats = self._lengths = np.empty(0, np.int64)
        if give_back is not None:
            give_back()


class Storage:
    """One file of fixed size. Every extent is a command of its own, or several where it exceeds `command_bytes`.

    `depth` commands are under way at once, each in a thread. `note` says why the page cache is in the way, where the
    file system does not allow direct I/O: what is measured then is not the device; None otherwise.

    Extents need no alignment: reading, whole blocks around them are read; writing, the blocks at their edges are read,
    changed and written. Threads may share it. Errors are StorageError, and name the file and the offset.

    Every request checks that the file is as long as it was when it was opened. With `sums`, which `create` makes, it
    also checks that every block that it reads holds what was written there last: a block that was cut off, punched out
    or overwritten by others, and one whose write the device lost, raises StorageError.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        writable: bool = False,
        depth: int = 8,
        command_bytes: int = 1 << 20,
        direct: bool = True,
        sums: BlockSums | None = None,
    ) -> None:
        """Open a file. Raises InputError when there is none, or the settings make no sense."""
        if depth < 1 or not BLOCK_BYTES <= command_bytes <= _MOST_COMMAND_BYTES or command_bytes % BLOCK_BYTES:
            raise InputError(
                f"storage needs a depth of at least 1 and commands of a multiple of {BLOCK_BYTES} bytes, up to 1 GiB, "
                f"not {depth} and {command_bytes}"
            )
        self.path = Path(path)
        self._command_bytes = command_bytes
        self._file = StorageFile(self.path, writable, direct)
        self.note, self.size_bytes, self._block = self._file.note, self._file.size_bytes, self._file.block_bytes
        self._sums = sums
        if sums is not None:
            # Only of whole blocks a sum is known.
            self._block = BLOCK_BYTES
        try:
            if writable and self.size_bytes % self._block:
                raise InputError(
                    f"{path} has {self.size_bytes} bytes; to be written it needs a multiple of {self._block}"
                )
            self._threads = Threads(self._file, depth)
        except BaseException:
            self._file.close()
            raise
        self._buffers = Buffers()
        self._parts = PartsOfBlocks(self._file, self._threads, self._block, command_bytes, sums)
        self._under_way, self._closed = 0, False
        self._ended = Condition()

    @classmethod
    def create(cls, path: Path | str, n_bytes: int, **settings: Any) -> "Storage":
        """Make a file of at least this many zero bytes, and open it for writing; settings as for opening.

        The file is there under its name only once it has all its room. Raises StorageFull when there is none.
        """
        size_bytes = max(BLOCK_BYTES, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        make_room(Path(path), size_bytes)
        return cls(path, writable=True, sums=BlockSums(size_bytes), **settings)

    @property
    def peak_buffer_bytes(self) -> int:
        """The most memory that reads held at once, until they were released."""
        return self._buffers.peak_bytes

    def read(self, extents: Extents) -> Data:
        """The bytes of these extents. Raises StorageError when the file was cut, or does not hold what was written."""
        offsets, lengths = inside(self.path, self.size_bytes, extents)
        before = offsets % self._block
        sizes = np.where(lengths, -(-(before + lengths) // self._block) * self._block, 0)
        ends = np.cumsum(sizes)
        ats = ends - sizes
        with self._request():
            memory = self._buffers.take(int(ends[-1]) if len(ends) else 0)
            commands = Commands.of(offsets - before, ats, sizes, self._command_bytes)
            self._threads.run(commands, memory, writing=False)
            self._parts.check(offsets - before, sizes, memory)
        return Data(memory, ats + before, lengths, lambda: self._buffers.give_back(memory))

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Write the extents, whose bytes lie in `data` one after the other.

        Raises StorageFull when the device is, and other StorageErrors; some of the extents may be written by then.
        """
        source = memoryview(data).cast("B")
        if len(source) != extents.n_bytes:
            raise InputError(f"{extents.n_bytes} bytes are to be written to {self.path}, and {len(source)} were given")
        offsets, lengths = inside(self.path, self.size_bytes, extents)
        ats = np.cumsum(lengths) - lengths
        heads = np.minimum(-offsets % self._block, lengths)
        bodies = (lengths - heads) // self._block * self._block
        tails = lengths - heads - bodies
        with self._request():
            if self._sums is not None:
                _record(self._sums, offsets + heads, ats + heads, bodies, source)
            whole = Commands.of(offsets + heads, ats + heads, bodies, self._command_bytes)
            if whole.sizes.size and ((whole.ats + address(source)) % self._block).any():
                self._parts.write_copied(whole, source)
            else:
                self._threads.run(whole, source, writing=True)
            edges = [Commands.of(offsets, ats, heads, self._block)]
            edges += [Commands.of(offsets + heads + bodies, ats + heads + bodies, tails, self._block)]
            for each in edges:
                for offset, at, n_bytes in each.one_by_one():
                    self._parts.write_edge(offset, source[at : at + n_bytes])
            # A write behind a cut makes the file longer again, with zeros between.
            self._file.check_size()

    def close(self) -> None:
        """Wait for requests under way, and close the file; closing twice is harmless."""
        with self._ended:
            if self._closed:
                return
            self._closed = True
            self._ended.wait_for(lambda: not self._under_way)
        self._threads.close()
        self._file.close()

    def __enter__(self) -> "Storage":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests ------------------------------------------------------------------------------------------------

    @contextmanager
    def _request(self) -> Iterator[None]:
        with self._ended:
            if self._closed:
                raise StorageError(f"{self.path} has been closed")
            self._under_way += 1
        try:
            self._file.check_size()
            yield
        finally:
            with self._ended:
                self._under_way -= 1
                self._ended.notify_all()


def _record(sums: BlockSums, offsets: np.ndarray, ats: np.ndarray, sizes: np.ndarray, source: memoryview) -> None:
    """Note the sums of whole blocks that are about to be written, from places in `source`."""
    if sizes.sum() == len(source):
        sums.record(blocks_of(offsets, sizes), source)
        return
    for offset, at, size in zip(offsets.tolist(), ats.tolist(), sizes.tolist(), strict=True):
        blocks = np.arange(offset, offset + size, BLOCK_BYTES) // BLOCK_BYTES
        sums.record(blocks, source[at : at + size])
