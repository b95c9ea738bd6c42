"""When a device shows its tokens: those from the cloud at a steady pace, then its own (P/D-Device 3.3)."""

import numpy as np


def shown_times_s(arrivals_s: np.ndarray, own_s: np.ndarray, pace_s: float) -> np.ndarray:
    """When each token is shown, in seconds on the clock of the others; float[assisted + own].

    `arrivals_s`: of the tokens from the cloud, at least one; the first is shown as it comes. The others have a slot
    each, `pace_s` apart, and are shown then, or as they come where they are late: tokens after a late one keep their
    slots, so that lateness does not add up. `own_s`: when the device has those that follow. No token is shown before
    the one before it.

    Where tokens come no later than `late_s` after their slots and the device keeps its pace, users never wait longer
    between two tokens than `pace_s` + `late_s`.
    """
    slots_s = arrivals_s[0] + pace_s * np.arange(len(arrivals_s))
    return np.maximum.accumulate(np.concatenate([np.maximum(slots_s, arrivals_s), own_s]))


def own_times_s(first_s: float, tpot_s: float, assisted: int, tokens: int) -> np.ndarray:
    """When a device whose own first token is there at `first_s` has those that the cloud did not send. It decodes
    through the assisted ones as well, each from the one that the cloud sent (procedure 2), before it goes on."""
    return first_s + tpot_s * np.arange(assisted, tokens)
