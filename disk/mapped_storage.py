"""A file mapped into memory: it is read by page faults, and what memory does not hold is dropped and read again."""

import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from kvferry.disk.block_sums import BlockSums, changed_block
from kvferry.disk.direct_storage import Data
from kvferry.disk.opened_file import BLOCK_BYTES, StorageError, file_system, inside, make_room
from kvferry.machine.ops import Extents
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.errors import InputError
from kvferry.specs.storage import StorageSpec

# What is dropped at once.
_CLUSTER_BYTES = 256 << 10
_NEIGHBOURS = 16
# A page fault in a row of them reads so much: Linux's own read-ahead.
_FAULT_BYTES = 128 << 10


class MappedStorage:
    """One file of fixed size, with `most_bytes` of it in memory at most: the page cache is what keeps it there.

    A read checks the pages that it brings into memory against what was written to them last, and raises StorageError
    when they differ. Pages that the system brings back later, when they are looked at again, are not checked.

    The clusters of pages that were used longest ago are dropped first: written back, taken out of the mapping and
    out of the page cache. `like`: page faults then wait for the rest of what this profile says; None: they take
    what the disk takes. One thread reads and writes. Raises InputError where the system cannot drop pages.
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
        self._map = mmap.mmap(self._fd, self.size_bytes)
        self._bytes: np.ndarray = np.frombuffer(self._map, np.uint8)
        self._most = max(1, int(most_bytes // _CLUSTER_BYTES))
        # Clusters in memory, those used longest ago first; True: written to since it came.
        self._held: OrderedDict[int, bool] = OrderedDict()
        self._peak = 0
        self._sums = BlockSums(self.size_bytes)
        # A process that faults waits for its page, so one command is under way.
        self._curves = None if like is None else StorageCurves(like.model_copy(update={"queue_depth": 1}))
        in_memory = file_system(os.fstat(self._fd).st_dev) in ("tmpfs", "ramfs")
        self.note = f"{self.path} lies in memory: nothing of it can be dropped there" if in_memory else None
        self.batches = self.late = 0
        # What page faults read, and what was written back, dropped clusters that came again among it.
        self.faulted_bytes = self.written_back_bytes = 0
        self._forget(0, self.size_bytes)

    @classmethod
    def create(
        cls, path: Path | str, n_bytes: int, *, most_bytes: float, like: StorageSpec | None = None
    ) -> "MappedStorage":
        """Make a file of at least this many zero bytes, and map it. Raises StorageFull when there is no room for it."""
        make_room(Path(path), -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        return cls(path, most_bytes=most_bytes, like=like)

    @property
    def peak_bytes(self) -> int:
        """The most of the file that was in memory at once."""
        return self._peak * _CLUSTER_BYTES

    def read(self, extents: Extents) -> Data:
        """Every page of these extents is touched, one extent after the other; where memory does not hold them all, the
        first ones are dropped by then, and fault again when they are looked at."""
        self._check_inside(extents)
        began_s, before = perf_counter(), self.faulted_bytes
        for offset, length in extents:
            for begin, end in self._use(offset, length, writes=False):
                # Every page comes by that.
                self._check(begin, end)
        self._pace(began_s, self.faulted_bytes - before, writes=False)
        offsets, lengths = extents.arrays
        return Data(memoryview(self._map), offsets, lengths, lambda: None)

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Write into the mapping; pages are written back when they are dropped."""
        self._check_inside(extents)
        source = np.frombuffer(data, np.uint8)
        if len(source) != extents.n_bytes:
            raise InputError(f"{extents.n_bytes} bytes are to be written to {self.path}, and {len(source)} were given")
        began_s, before, at = perf_counter(), self.written_back_bytes, 0
        for offset, length in extents:
            for begin, end in self._use(offset, length, writes=True):
                for edge in {begin, end}:
                    # A block that is written in part.
                    if edge % BLOCK_BYTES:
                        self._check(edge, edge)
                self._bytes[begin:end] = source[at : at + end - begin]
                self._sums.record(*self._blocks(begin, end))
                at += end - begin
        self._pace(began_s, self.written_back_bytes - before, writes=True)

    def close(self) -> None:
        """Give up the mapping and the file; closing twice is harmless."""
        if self._fd >= 0:
            # The mapping goes with the last view of it.
            del self._bytes, self._map
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "MappedStorage":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _blocks(self, begin: int, end: int) -> tuple[np.ndarray, memoryview]:
        """The numbers of the blocks around these bytes, and what they hold."""
        first, last = begin // BLOCK_BYTES, -(-max(end, begin + 1) // BLOCK_BYTES)
        return np.arange(first, last), memoryview(self._map)[first * BLOCK_BYTES : last * BLOCK_BYTES]

    def _check(self, begin: int, end: int) -> None:
        """Raises StorageError unless the blocks around these bytes are as they were written last."""
        blocks, memory = self._blocks(begin, end)
        changed = self._sums.changed(blocks, memory)
        if changed.size:
            at = int(blocks[changed[0]]) * BLOCK_BYTES
            raise changed_block(self.path, at, bool(self._bytes[at : at + BLOCK_BYTES].any()))

    # --- pages ---------------------------------------------------------------------------------------------------

    def _use(self, offset: int, length: int, writes: bool) -> Iterator[tuple[int, int]]:
        """The parts of an extent, cluster by cluster, each about to be used: there is room in memory for it."""
        at, end = offset, offset + length
        while at < end:
            cluster = at // _CLUSTER_BYTES
            upto = min(end, (cluster + 1) * _CLUSTER_BYTES)
            if cluster not in self._held:
                while len(self._held) >= self._most:
                    self._drop(*self._held.popitem(last=False))
                self._held[cluster] = False
                self._peak = max(self._peak, len(self._held))
                self.faulted_bytes += 0 if writes else upto - at
            self._held[cluster] |= writes
            self._held.move_to_end(cluster)
            yield at, upto
            at = upto

    def _drop(self, cluster: int, written: bool) -> None:
        begin = cluster * _CLUSTER_BYTES
        end = min(begin + _CLUSTER_BYTES, self.size_bytes)
        if written:
            self._map.flush(begin, end - begin)
            self.written_back_bytes += end - begin
        # The kernel reads ahead of a fault, and keeps pages in pieces that it drops only as a whole: neighbours that
        # are not held either go along.
        last = first = cluster
        while last < cluster + _NEIGHBOURS and last + 1 not in self._held:
            last += 1
        while first > max(0, cluster - _NEIGHBOURS) and first - 1 not in self._held:
            first -= 1
        self._forget(first * _CLUSTER_BYTES, min((last + 1) * _CLUSTER_BYTES, self.size_bytes))

    def _forget(self, begin: int, end: int) -> None:
        # Out of the mapping first: the page cache keeps what is mapped.
        self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)

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
