"""Rows of loads: every one in a CSV file, percentiles of many as rows of Markdown for docs/validation/regret.md."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np


def write_csv(path: Path | None, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes nothing where no path is given."""
    if path is not None:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])


def percentiles(regrets: Sequence[float]) -> str:
    """Median, 95th and 99th percentile (of fewer than 500 loads, none) and worst, from shares, in percent."""
    values = 100 * np.asarray(regrets)
    median, p95, p99 = np.percentile(values, [50, 95, 99])
    return f"{median:.2f}, {p95:.2f}, {f'{p99:.2f}' if len(values) >= 500 else '-'}, {values.max():.1f}"


def print_table(corner: str, cells: Mapping[str, Mapping[str, str]]) -> None:
    """Prints a cell by row and column as Markdown."""
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    lines = [[corner, *columns], ["---"] * (1 + len(columns))]
    lines += [[label, *(row.get(column, "") for column in columns)] for label, row in cells.items()]
    print()
    for line in lines:
        print(f"| {' | '.join(line)} |")
