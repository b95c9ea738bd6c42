"""Room of a storage file that is taken and given back in portions of a few sizes."""

from collections import defaultdict

import numpy as np

from kvferry.specs.errors import InputError


class FileRoom:
    """Portions lie one behind the other; one that is given back is taken again by the next of its size."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        # Where the portions end that were ever taken.
        self.end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def take(self, n_bytes: int) -> int:
        """The offset of a portion. InputError when the file has no room for it."""
        if self._free[n_bytes]:
            return self._free[n_bytes].pop()
        if self.end + n_bytes > self.file_bytes:
            what = f"the file of {self.file_bytes:,} B has no room for a pool of {n_bytes:,} B"
            raise InputError(f"policies.layout: {what}; a larger room, or a smaller pool, would do")
        offset, self.end = self.end, self.end + n_bytes
        return offset

    def take_together(self, n_bytes: np.ndarray) -> np.ndarray:
        """Offsets of portions of these sizes, one behind the other. InputError when the file has no room for them."""
        ends = self.end + np.cumsum(n_bytes)
        if len(ends) and ends[-1] > self.file_bytes:
            what = f"the file of {self.file_bytes:,} B has no room for pools of {int(n_bytes.sum()):,} B"
            raise InputError(f"policies.layout: {what}; a larger room, or smaller pools, would do")
        self.end = int(ends[-1]) if len(ends) else self.end
        return np.asarray(ends - n_bytes)

    def give_back(self, offset: int, n_bytes: int) -> None:
        self._free[n_bytes].append(offset)

    @property
    def free(self) -> list[tuple[int, int]]:
        """Offset and bytes of every portion that was given back."""
        return [(offset, size) for size, offsets in self._free.items() for offset in offsets]

    def check(self, begins: np.ndarray, n_bytes: np.ndarray) -> None:
        """AssertionError unless these portions and the free ones make up the file, each once."""
        begins = np.concatenate([begins, [offset for offset, _ in self.free]])
        n_bytes = np.concatenate([n_bytes, [size for _, size in self.free]])
        order = np.argsort(begins)
        ends = begins[order] + n_bytes[order]
        assert (ends[:-1] == begins[order][1:]).all() and begins.min() == 0 and ends[-1] == self.end
