"""The number of slots of a reuse buffer that pays: more slots save reads, and cost time to search."""

import math
from collections.abc import Callable

# From one number that is tried to the next.
_STEP = 1.06


def tried_slots(selected: int, fitting: int) -> list[int]:
    """Returns numbers of slots between one selection and all that fit, ascending. They do not depend on what fits, but
    for the last one: with more memory, the same are tried and more."""
    steps = range(int(math.log(fitting / selected, _STEP)) + 1)
    return sorted({*(int(selected * _STEP**n) for n in steps), fitting})


def paying_slots(selected: int, fitting: int, took_s: Callable[[int], float]) -> int:
    """Returns the number of slots, `fitting` at most, that takes the least time; the largest of equal ones."""
    return min(reversed(tried_slots(selected, fitting)), key=took_s)
