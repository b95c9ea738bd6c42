"""Checksums of a file's blocks: what was written there, as far as 64 bits per block tell."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from kvferry.disk.opened_file import BLOCK_BYTES, StorageError

_WORDS = BLOCK_BYTES // 8


@lru_cache(maxsize=4)
def _factors(words: int) -> np.ndarray:
    """An odd factor for every place in a block, modulo 2**64: one changed word always changes the sum, and any other
    change does but for a chance of about one in 2**63."""
    return np.random.default_rng(4096).integers(1 << 63, size=words, dtype=np.uint64) * 2 + 1


_FACTORS = _factors(_WORDS)


class BlockSums:
    """One sum per block of a file that began as zeros; a block of zeros has the sum 0.

    A sum is taken in one pass of numpy over all blocks of a request, twice as fast as a CRC-32 block by block
    (`benchmarks/live.py` measures both).
    """

    def __init__(self, size_bytes: int) -> None:
        self._sums = np.zeros(size_bytes // BLOCK_BYTES, np.uint64)

    def record(self, blocks: np.ndarray, memory: memoryview) -> None:
        """Blocks, by number, hold what lies in `memory`, one block after the other."""
        self._sums[blocks] = sums_of(memory)

    def of(self, first: int, number: int) -> np.ndarray:
        """uint64[number]: what was recorded of blocks from the first on."""
        return self._sums[first : first + number]

    def changed(self, blocks: np.ndarray, memory: memoryview) -> np.ndarray:
        """Which of these blocks, as they lie in `memory`, do not hold what was recorded: their places in `blocks`."""
        return np.flatnonzero(sums_of(memory) != self._sums[blocks])


def sums_of(memory: memoryview) -> np.ndarray:
    """uint64[blocks]."""
    words = np.frombuffer(memory, np.uint64).reshape(-1, _WORDS)
    sums: np.ndarray = np.einsum("ij,j->i", words, _FACTORS)
    return sums


def row_sums(rows: np.ndarray) -> np.ndarray:
    """uint64[n]: such a sum for each row of uint8[n, bytes], of any length."""
    n, n_bytes = rows.shape
    words = -(-n_bytes // 8)
    whole = rows
    if n_bytes % 8:
        whole = np.zeros((n, 8 * words), np.uint8)
        whole[:, :n_bytes] = rows
    sums: np.ndarray = np.einsum("ij,j->i", np.ascontiguousarray(whole).view(np.uint64), _factors(words))
    return sums


def blocks_of(offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """int64[blocks]: the numbers of all blocks of pieces that begin and end between blocks, in order."""
    counts = sizes // BLOCK_BYTES
    ends = np.cumsum(counts)
    n = int(ends[-1]) if len(ends) else 0
    return np.repeat(offsets // BLOCK_BYTES - (ends - counts), counts) + np.arange(n)


def changed_block(path: Path, offset: int, holds_bytes: bool) -> StorageError:
    """What is to be raised for a block that does not hold what was written there; not `holds_bytes`: only zeros."""
    what = "other bytes than were written there" if holds_bytes else "zeros where something else was written"
    return StorageError(
        f"{path} holds {what}, in the {BLOCK_BYTES} bytes at offset {offset}: "
        "the file has been changed from outside, or the device has lost a write"
    )
