"""Storage commands done by io_uring: the kernel keeps the queue depth, and one thread waits for it."""

from threading import Lock

import numpy as np

from kvferry.backends.live.storage.opened_file import Commands, StorageFile
from kvferry.backends.live.storage.uring import Ring
from kvferry.system.aligned_memory import address

# Commands that are laid out at once; between two such batches the queue runs empty.
_BATCH = 1024


class Uring:
    """An `Engine` of one ring. Raises OSError where the system has no io_uring, or does not allow it."""

    name = "io_uring"

    def __init__(self, file: StorageFile, depth: int) -> None:
        self._file = file
        self._ring = Ring(file.fd, max(_BATCH, depth))
        self._depth = min(depth, self._ring.n_entries)
        self._turn = Lock()

    def run(self, commands: Commands, memory: memoryview, writing: bool) -> None:
        if self._depth == 1 or len(commands.sizes) == 1:
            # One at a time needs no ring, and is as fast without.
            self._one_by_one(commands, memory, writing)
            return
        base, n_entries = address(memory), self._ring.n_entries
        with self._turn:
            for first in range(0, len(commands.sizes), n_entries):
                batch = Commands(*(column[first : first + n_entries] for column in commands))
                results = self._ring.run(batch.offsets, batch.ats + base, batch.sizes, self._depth, writing)
                self._finish(batch, results, memory, writing)

    def _finish(self, batch: Commands, results: np.ndarray, memory: memoryview, writing: bool) -> None:
        """Do what came short or failed again, step by step: that gets it done, or tells why it cannot be."""
        wanted = batch.sizes if writing else np.minimum(batch.sizes, self._file.size_bytes - batch.offsets)
        short = results != wanted
        if short.any():
            self._one_by_one(Commands(*(column[short] for column in batch)), memory, writing)

    def _one_by_one(self, commands: Commands, memory: memoryview, writing: bool) -> None:
        do = self._file.put if writing else self._file.fill
        for offset, at, n_bytes in commands.one_by_one():
            do(memory, offset, at, n_bytes)

    def close(self) -> None:
        with self._turn:
            self._ring.close()
