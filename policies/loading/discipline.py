"""Which of several loads may use link and processor at a time."""

from collections.abc import Callable
from typing import Literal

Serving = Literal["fair", "one-at-a-time"]
# Whether the next load may begin while this many are under way.
Discipline = Callable[[int], bool]


def fair(under_way: int) -> bool:
    """Every load begins at once; those under way share both paths."""
    return True


def one_at_a_time(under_way: int) -> bool:
    """A load has both paths to itself; the others wait, first come first served."""
    return under_way == 0


DISCIPLINES: dict[Serving, Discipline] = {"fair": fair, "one-at-a-time": one_at_a_time}
