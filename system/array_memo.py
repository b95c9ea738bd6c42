"""Results that depend on an array alone, remembered by its content."""

import hashlib
from collections.abc import Callable, Hashable

import numpy as np

from kvferry.system.memo import Memo


class ArrayMemo:
    """The last `most` results of a function: of arrays that hold the same, it is asked once."""

    def __init__(self, most: int) -> None:
        self._found = Memo[np.ndarray](most)

    def of(self, array: np.ndarray, *further: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns what `make` gives for this array and what else it depends on; not to be written to."""

        def made() -> np.ndarray:
            found = make()
            found.flags.writeable = False
            return found

        return self._found.of((content_of(array), further), made)


def content_of(array: np.ndarray) -> Hashable:
    """Returns what is equal for arrays that hold the same."""
    return hashlib.sha256(np.ascontiguousarray(array).data).digest(), array.shape, str(array.dtype)
