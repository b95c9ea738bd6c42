"""Seconds measured on a grid of features, interpolated between its points."""

import csv
import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kvferry.machine.ops import Number
from kvferry.specs.errors import InputError
from kvferry.traces.format import read_lines

MOST_ROWS = 1_000_000


class Grid:
    """Multilinear between grid points, linear beyond its edges (never below 0).

    ``warnings`` lists the features that were requested outside the measured range, and how far outside.
    """

    def __init__(self, name: str, axes: tuple[str, ...], points: tuple[np.ndarray, ...], seconds: np.ndarray) -> None:
        """`points[i]` ascending along axis i; `seconds` of shape [len(points[0]), len(points[1]), ...]."""
        self.name, self.axes, self.points, self.seconds = name, axes, points, seconds
        # Per axis, the lowest and highest value asked for.
        self._asked = [(math.inf, -math.inf)] * len(axes)

    @property
    def warnings(self) -> tuple[str, ...]:
        lines = []
        for axis, points, asked in zip(self.axes, self.points, self._asked, strict=True):
            outside = [f"{value:g}" for value in asked if math.isfinite(value) and not points[0] <= value <= points[-1]]
            if outside:
                lines.append(
                    f"{self.name}: {axis} {' and '.join(outside)} lies outside the measured "
                    f"{points[0]:g} to {points[-1]:g}; extrapolated"
                )
        return tuple(lines)

    def __call__(self, features: Mapping[str, Number]) -> np.ndarray:
        """Seconds at the features, which are broadcast; features without an axis are ignored."""
        values = np.broadcast_arrays(*(np.asarray(features[axis], dtype=float) for axis in self.axes))
        # Per axis: the grid indices on both sides, and how much each side counts.
        cells: list[tuple[np.ndarray, ...]] = []
        weights: list[tuple[np.ndarray, ...]] = []
        for number, (points, value) in enumerate(zip(self.points, values, strict=True)):
            if value.size:
                low, high = self._asked[number]
                self._asked[number] = min(low, float(value.min())), max(high, float(value.max()))
            if points.size == 1:
                cells.append((np.zeros(value.shape, int),))
                weights.append((np.ones(value.shape),))
                continue
            cell = np.clip(np.searchsorted(points, value, side="right") - 1, 0, points.size - 2)
            # Below 0 or above 1 beyond the edges: the last cell's slope goes on.
            weight = (value - points[cell]) / (points[cell + 1] - points[cell])
            cells.append((cell, cell + 1))
            weights.append((1 - weight, weight))
        total = np.zeros(values[0].shape)
        for corner, shares in zip(itertools.product(*cells), itertools.product(*weights), strict=True):
            total = total + self.seconds[corner] * np.prod(shares, axis=0)
        return np.maximum(total, 0)


def read_grid(path: Path, known: tuple[str, ...]) -> Grid:
    """A CSV with a header of feature names and `seconds`; a row for every point of the grid, in any order.

    Raises InputError with the line number when a column is not in `known`, a cell is not a number, or a point is
    missing or given twice.
    """
    try:
        rows = list(itertools.islice(csv.reader(read_lines(path)), MOST_ROWS + 1))
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    if len(rows) > MOST_ROWS:
        raise InputError(f"{path}: more than {MOST_ROWS:,} rows")
    if len(rows) < 2 or rows[0][-1:] != ["seconds"] or len(rows[0]) < 2:
        raise InputError(f"{path}:1: needs a header such as {','.join(known[:2])},seconds and a row per grid point")
    axes = tuple(rows[0][:-1])
    for axis in axes:
        if axis not in known or axes.count(axis) > 1:
            raise InputError(f"{path}:1: column {axis!r}; known, once each: {', '.join(known)}")
    numbers = np.array([_numbers(path, line, row, len(rows[0])) for line, row in enumerate(rows[1:], 2)])
    points = tuple(np.unique(numbers[:, axis]) for axis in range(len(axes)))
    places = tuple(np.searchsorted(points[axis], numbers[:, axis]) for axis in range(len(axes)))
    # Counted before any memory is taken: each value of an axis multiplies the places, and one row brings several.
    size = math.prod(point.size for point in points)
    if size != len(numbers):
        raise InputError(
            f"{path}: {len(numbers):,} rows, but {' x '.join(str(point.size) for point in points)} values of "
            f"{', '.join(axes)} make {size:,} grid points; each needs one row"
        )
    seconds = np.full([point.size for point in points], np.nan)
    seconds[places] = numbers[:, -1]
    if np.isnan(seconds).any():
        raise InputError(f"{path}: a grid point is there twice, hence another is missing")
    return Grid(path.name, axes, points, seconds)


def _numbers(path: Path, line: int, row: list[str], columns: int) -> list[float]:
    try:
        numbers = [float(text) for text in row]
    except ValueError:
        numbers = []
    if len(numbers) != columns or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise InputError(f"{path}:{line}: {','.join(row)[:80]!r} is not {columns} numbers from 0 on")
    return numbers
