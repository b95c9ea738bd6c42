"""Ranks of numbers among those that are equal."""

import numpy as np


def ranks(numbers: np.ndarray) -> np.ndarray:
    """Returns int64[n]: how many equal numbers stand before each."""
    order = np.argsort(numbers, kind="stable")
    grouped = numbers[order]
    firsts = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]]))
    found = np.empty(len(numbers), np.int64)
    found[order] = np.arange(len(grouped)) - np.repeat(firsts, np.diff(np.append(firsts, len(grouped))))
    return found
