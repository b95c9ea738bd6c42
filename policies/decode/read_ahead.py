"""A limit on what is read of a layer before its query says what it wants: the layer before has to leave time for it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Seconds for which a layer computes once its KV is there, ``window_s``, and what storage takes for reads
    meanwhile: ``command_s`` for each, and ``byte_s`` for each byte."""

    window_s: float
    command_s: float
    byte_s: float

    def fits(self, n_bytes: np.ndarray) -> np.ndarray:
        """Returns bool: which of these reads, one after the other, have ended within the window."""
        ends_s: np.ndarray = np.cumsum(self.command_s + self.byte_s * n_bytes)
        return ends_s <= self.window_s
