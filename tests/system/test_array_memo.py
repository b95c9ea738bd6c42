"""A function of an array is asked once for each content."""

import numpy as np
import pytest

from kvferry.system.array_memo import ArrayMemo


def test_equal_arrays_are_asked_for_once_and_few_are_kept() -> None:
    memo, asked = ArrayMemo(2), list[float]()

    def doubled(value: float, further: int = 0) -> np.ndarray:
        array = np.array([value])
        return memo.of(array, further, make=lambda: asked.append(value) or 2 * array)

    assert [float(doubled(value)[0]) for value in (1.0, 2.0, 1.0, 2.0)] == [2, 4, 2, 4]
    assert asked == [1, 2]
    # Of another argument, and then of the one that was dropped.
    doubled(1.0, 7), doubled(2.0), doubled(1.0)
    assert asked == [1, 2, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        doubled(1.0)[0] = 3
    assert memo.of(np.zeros((2, 1)), make=lambda: np.ones(1)) is not memo.of(np.zeros((1, 2)), make=lambda: np.ones(1))
