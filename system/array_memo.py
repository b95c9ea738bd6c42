"""Results that depend on an array alone, remembered by its content."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np


class ArrayMemo:
    """The last `most` results of a function: of arrays that hold the same, it is asked once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found = OrderedDict[Hashable, np.ndarray]()

    def of(self, array: np.ndarray, *further: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns what `make` gives for this array and what else it depends on; not to be written to."""
        content = hashlib.sha256(np.ascontiguousarray(array).data).digest()
        key = content, array.shape, str(array.dtype), further
        if key not in self._found:
            self._found[key] = made = make()
            made.flags.writeable = False
            if len(self._found) > self._most:
                self._found.popitem(last=False)
        return self._found[key]
