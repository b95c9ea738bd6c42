"""Columns for Parquet files, built without pandas: ``pyarrow.array`` imports it to see whether it was given a series,
which takes longer than a small run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def whole(values: Sequence[int | None]) -> pa.Array:
    """Returns a column of int64; None is null."""
    import pyarrow as pa

    return _numbers(values, np.int64, pa.int64())


def real(values: Sequence[float | None]) -> pa.Array:
    """Returns a column of float64; None is null."""
    import pyarrow as pa

    return _numbers(values, np.float64, pa.float64())


def text(values: Sequence[str]) -> pa.Array:
    """Returns a column of strings."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    kind, offset = (pa.string(), np.int32) if ends[-1] < 2**31 else (pa.large_string(), np.int64)
    buffers = [None, pa.py_buffer(ends.astype(offset)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers)


def _numbers(values: Sequence[float | None], dtype: type, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    there = np.fromiter((value is not None for value in values), bool, len(values))
    numbers: np.ndarray = np.fromiter((0 if value is None else value for value in values), dtype, len(values))
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(numbers)])
