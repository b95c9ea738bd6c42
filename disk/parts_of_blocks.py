"""What direct I/O cannot do as it is: writes from memory that is not aligned, and of parts of blocks."""

from threading import Lock

import numpy as np

from kvferry.disk.block_sums import BlockSums, blocks_of, changed_block
from kvferry.disk.opened_file import BLOCK_BYTES, Commands, StorageFile
from kvferry.disk.threads import Threads
from kvferry.system.aligned_memory import Buffers

# Data that is not aligned in memory is copied in portions of this size to be written.
_COPIED_BYTES = 32 << 20


class PartsOfBlocks:
    """Writes whole blocks from memory that is not aligned, and parts of blocks, these one thread at a time; and checks
    blocks while others may write parts of them. `sums` of the file's blocks; None: nothing is checked."""

    def __init__(
        self, file: StorageFile, threads: Threads, block_bytes: int, command_bytes: int, sums: BlockSums | None
    ) -> None:
        self._file, self._threads, self._block, self._sums = file, threads, block_bytes, sums
        self._command_bytes, self._copies = command_bytes, Buffers()
        # Held while blocks at the edges of extents are read, changed and written.
        self._edges = Lock()

    def check(self, offsets: np.ndarray, sizes: np.ndarray, memory: memoryview) -> None:
        """Raise StorageError unless the blocks at these offsets, which lie in memory one after the other, are as they
        were written."""
        if self._sums is None:
            return
        blocks = blocks_of(offsets, sizes)
        for place in self._sums.changed(blocks, memory[: len(blocks) * BLOCK_BYTES]).tolist():
            block, there = blocks[place : place + 1], memory[place * BLOCK_BYTES :][:BLOCK_BYTES]
            offset = int(block[0]) * BLOCK_BYTES
            # Another thread may just have been writing a part of this block that was not asked for.
            with self._edges:
                self._file.fill(there, offset, 0, BLOCK_BYTES)
                if self._sums.changed(block, there).size:
                    raise changed_block(self._file.path, offset, any(there))

    def write_copied(self, whole: Commands, source: memoryview) -> None:
        """Write from memory that is not aligned to blocks, by way of memory that is."""
        copy = self._copies.take(max(_COPIED_BYTES, self._command_bytes))
        try:
            portions = np.cumsum(whole.sizes) // (len(copy) - self._command_bytes + 1)
            for portion in np.unique(portions):
                part = Commands(*(column[portions == portion] for column in whole))
                ats = np.cumsum(part.sizes) - part.sizes
                for to, (_, at, n_bytes) in zip(ats.tolist(), part.one_by_one(), strict=True):
                    copy[to : to + n_bytes] = source[at : at + n_bytes]
                self._threads.run(part._replace(ats=ats), copy, writing=True)
        finally:
            self._copies.give_back(copy)

    def write_edge(self, offset: int, data: memoryview) -> None:
        """Write a part of one block."""
        inside = offset % self._block
        with self._edges:
            block = self._copies.take(self._block)
            try:
                whole, number = block[: self._block], np.array([offset // self._block])
                self._file.fill(block, offset - inside, 0, self._block)
                if self._sums is not None and self._sums.changed(number, whole).size:
                    raise changed_block(self._file.path, offset - inside, any(whole))
                block[inside : inside + len(data)] = data
                if self._sums is not None:
                    self._sums.record(number, whole)
                self._file.put(block, offset - inside, 0, self._block)
            finally:
                self._copies.give_back(block)
