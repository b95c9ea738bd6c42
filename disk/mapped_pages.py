"""The pages of a file that is mapped into memory: which of them are there, and which have to go."""

import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator

# What is dropped at once.
_CLUSTER_BYTES = 256 << 10
_NEIGHBOURS = 16


class MappedPages:
    """A mapping of a file, with `most_bytes` of it in memory at most. The clusters of pages that were used longest ago
    are dropped first: written back, taken out of the mapping and out of the page cache."""

    def __init__(self, fd: int, size_bytes: int, most_bytes: float) -> None:
        self._fd, self._size_bytes = fd, size_bytes
        self.memory = mmap.mmap(fd, size_bytes)
        self._most = max(1, int(most_bytes // _CLUSTER_BYTES))
        # Clusters in memory, those used longest ago first; True: written to since it came.
        self._held: OrderedDict[int, bool] = OrderedDict()
        self._peak = 0
        # What page faults read, and what was written back, dropped clusters that came again among it.
        self.faulted_bytes = self.written_back_bytes = 0
        self._forget(0, size_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most of the file that was in memory at once."""
        return self._peak * _CLUSTER_BYTES

    def use(self, offset: int, length: int, writes: bool) -> Iterator[tuple[int, int]]:
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
        end = min(begin + _CLUSTER_BYTES, self._size_bytes)
        if written:
            self.memory.flush(begin, end - begin)
            self.written_back_bytes += end - begin
        # The kernel reads ahead of a fault, and keeps pages in pieces that it drops only as a whole: neighbours that
        # are not held either go along.
        last = first = cluster
        while last < cluster + _NEIGHBOURS and last + 1 not in self._held:
            last += 1
        while first > max(0, cluster - _NEIGHBOURS) and first - 1 not in self._held:
            first -= 1
        self._forget(first * _CLUSTER_BYTES, min((last + 1) * _CLUSTER_BYTES, self._size_bytes))

    def _forget(self, begin: int, end: int) -> None:
        # Out of the mapping first: the page cache keeps what is mapped.
        self.memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)
