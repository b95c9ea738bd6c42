"""Normal numbers along a context, alike where they are near."""

import math

import numpy as np

# Correlations below this are left out.
_LEAST_CORRELATION = 1e-3


class SmoothFields:
    """Draws float32[rows, n], standard normal, where numbers m apart have a correlation of alike**m, around the ends
    too."""

    def __init__(self, rows: int, n: int, alike: float) -> None:
        self._shape = rows, n
        # y[n] = x[n] + a * y[n - 1], in doubled strides.
        self._strides: list[tuple[int, np.float32]] = []
        stride, weight, variance = 1, alike, 1.0
        while stride < n and weight > _LEAST_CORRELATION:
            self._strides.append((stride, np.float32(weight)))
            variance *= 1 + weight**2
            stride, weight = 2 * stride, weight**2
        self._scale = np.float32(math.sqrt(variance))

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        field = rng.standard_normal(self._shape, np.float32)
        for stride, weight in self._strides:
            before = field
            field = before.copy()
            field[:, stride:] += weight * before[:, :-stride]
            field[:, :stride] += weight * before[:, -stride:]
        field /= self._scale
        return field
