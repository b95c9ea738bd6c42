"""Where sentences of a text end, and which tokens belong to each."""

import re
from collections.abc import Sequence

import numpy as np

# A full stop, question or exclamation mark with space behind it, or the end of a line.
_END = re.compile(r"[.!?]+\s+|\n+")


def sentence_numbers(text: str, begins: Sequence[int]) -> np.ndarray:
    """int[tokens]: the number of the sentence in which each token begins; `begins` are places in the text,
    ascending."""
    ends = np.array([found.end() for found in _END.finditer(text)], dtype=np.int64)
    return np.searchsorted(ends, np.asarray(begins), side="right")
