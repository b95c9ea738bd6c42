"""The interpreter's search for cycles, which is made more seldom while worlds are open."""

import gc
from threading import Lock

# How many times as seldom as else Python looks for cycles among objects that have stayed. What thousands of devices
# leave behind is in no cycles, and looking through all of it again and again takes a sixth of the time.
_SELDOM = 100
# The same of young objects, through which it would look for a twelfth of the time.
_RARELY = 10


class SeldomCollected:
    """Worlds may open and close in any order, in several threads: the first one changes the thresholds, the last one
    sets them back."""

    def __init__(self) -> None:
        self._guard, self._open, self._before = Lock(), 0, (0, 0, 0)

    def __enter__(self) -> None:
        with self._guard:
            self._open += 1
            if self._open == 1:
                young, middle, old = self._before = gc.get_threshold()
                gc.set_threshold(_RARELY * young, middle, _SELDOM * old)

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._open -= 1
            if not self._open:
                gc.set_threshold(*self._before)


# Of the process, whose interpreter it is.
SELDOM_COLLECTED = SeldomCollected()
