"""A file mapped into memory: it is read by page faults, and what memory does not hold is dropped and read again."""

import mmap
import os
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from kvferry.disk.block_sums import BlockSums, changed_block
from kvferry.disk.direct_storage import Data
from kvferry.disk.mapped_pages import MappedPages
from kvferry.disk.opened_file import BLOCK_BYTES, StorageError, file_system, inside, make_room
from kvferry.machine.ops import Extents
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.errors import InputError
from kvferry.specs.storage import StorageSpec

# A page fault in a row of them reads so much: Linux's own read-ahead.
_FAULT_BYTES = 128 << 10


class MappedStorage:
    """One file of fixed size, with `most_bytes` of it in memory at most: the page cache is what keeps it there.

    A read checks the pages that it brings into memory against what was written to them last, and raises StorageError
    when they differ. Pages that the system brings back later, when they are looked at again, are not checked.

    `like`: page faults then wait for the rest of what this profile says; None: they take what the disk takes. One
    thread reads and writes. Raises InputError where the system cannot drop pages.
    """

    # Reads bring nothing but pages of the mapping.
    peak_buffer_bytes = 0

    def __init__(self, path: Path | str, *, most_bytes: float, like: StorageSpec | None = None) -> None:
        if not hasattr(os, "posix_fadvise") or not hasattr(mmap, "MADV_DONTNEED"):
            raise InputError(
                "this system cannot drop pages of a file from memory: run os-paging on Linux, or simulated"
            )
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_RDWR)
        self.size_bytes = os.fstat(self._fd).st_size
        self.pages = MappedPages(self._fd, self.size_bytes, most_bytes)
        self._bytes: np.ndarray = np.frombuffer(self.pages.memory, np.uint8)
        self._sums = BlockSums(self.size_bytes)
        # A process that faults waits for its page, so one command is under way.
        self._curves = None if like is None else StorageCurves(like.model_copy(update={"queue_depth": 1}))
        in_memory = file_system(os.fstat(self._fd).st_dev) in ("tmpfs", "ramfs")
        self.note = f"{self.path} lies in memory: nothing of it can be dropped there" if in_memory else None
        self.batches = self.late = 0

    @classmethod
    def create(
        cls, path: Path | str, n_bytes: int, *, most_bytes: float, like: StorageSpec | None = None
    ) -> "MappedStorage":
        """Make a file of at least this many zero bytes, and map it. Raises StorageFull when there is no room for it."""
        make_room(Path(path), -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        return cls(path, most_bytes=most_bytes, like=like)

    def read(self, extents: Extents) -> Data:
        """Every page of these extents is touched, one extent after the other; where memory does not hold them all, the
        first ones are dropped by then, and fault again when they are looked at."""
        self._check_inside(extents)
        began_s, before = perf_counter(), self.pages.faulted_bytes
        for offset, length in extents:
            for begin, end in self.pages.use(offset, length, writes=False):
                # Every page comes by that.
                self._check(begin, end)
        self._pace(began_s, self.pages.faulted_bytes - before, writes=False)
        offsets, lengths = extents.arrays
        return Data(memoryview(self.pages.memory), offsets, lengths, lambda: None)

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Write into the mapping; pages are written back when they are dropped."""
        self._check_inside(extents)
        source = np.frombuffer(data, np.uint8)
        if len(source) != extents.n_bytes:
            raise InputError(f"{extents.n_bytes} bytes are to be written to {self.path}, and {len(source)} were given")
        began_s, before, at = perf_counter(), self.pages.written_back_bytes, 0
        for offset, length in extents:
            for begin, end in self.pages.use(offset, length, writes=True):
                for edge in {begin, end}:
                    # A block that is written in part.
                    if edge % BLOCK_BYTES:
                        self._check(edge, edge)
                self._bytes[begin:end] = source[at : at + end - begin]
                self._sums.record(*self._blocks(begin, end))
                at += end - begin
        self._pace(began_s, self.pages.written_back_bytes - before, writes=True)

    def close(self) -> None:
        """Give up the mapping and the file; closing twice is harmless."""
        if self._fd >= 0:
            # The mapping goes with the last view of it.
            del self._bytes, self.pages.memory
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "MappedStorage":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _blocks(self, begin: int, end: int) -> tuple[np.ndarray, memoryview]:
        """The numbers of the blocks around these bytes, and what they hold."""
        first, last = begin // BLOCK_BYTES, -(-max(end, begin + 1) // BLOCK_BYTES)
        return np.arange(first, last), memoryview(self.pages.memory)[first * BLOCK_BYTES : last * BLOCK_BYTES]

    def _check(self, begin: int, end: int) -> None:
        """Raises StorageError unless the blocks around these bytes are as they were written last."""
        blocks, memory = self._blocks(begin, end)
        changed = self._sums.changed(blocks, memory)
        if changed.size:
            at = int(blocks[changed[0]]) * BLOCK_BYTES
            raise changed_block(self.path, at, bool(self._bytes[at : at + BLOCK_BYTES].any()))

    def _check_inside(self, extents: Extents) -> None:
        """Looking at pages that a file lost would end the process."""
        now = os.fstat(self._fd).st_size
        if now < self.size_bytes:
            raise StorageError(
                f"{self.path} has {now} bytes; it had {self.size_bytes} when it was mapped and has been cut"
            )
        inside(self.path, self.size_bytes, extents)

    def _pace(self, began_s: float, n_bytes: int, writes: bool) -> None:
        """Wait until the profile's device would have moved this many bytes, as faults do: a read-ahead at a time."""
        if self._curves is None or not n_bytes:
            return
        commands = np.full(-(-n_bytes // _FAULT_BYTES), _FAULT_BYTES)
        left_s = began_s + self._curves.batch_s(commands, writes) - perf_counter()
        self.batches += 1
        self.late += left_s < 0
        if left_s > 0:
            sleep(left_s)
