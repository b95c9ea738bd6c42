"""Tables of studies that measure against full attention."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

# Text further on in the library, that models were not trained with at its beginning.
APART = 1 << 19


def means(rows: Iterable[Mapping[str, float]], columns: Sequence[str]) -> dict[str, float]:
    """The mean of each column over the rows that have it; none of a column that no row has."""
    listed = list(rows)
    values = {key: [row[key] for row in listed if key in row] for key in columns}
    return {key: float(np.mean(of)) for key, of in values.items() if of}


def show(name: str, row: Mapping[str, float], columns: Sequence[str]) -> None:
    """Prints a line of a table."""
    print(f"| {name} |", " | ".join(f"{row[key]:.3f}" if key in row else "" for key in columns), "|", flush=True)


def heading(columns: Sequence[str]) -> None:
    print("| |", " | ".join(columns), "|\n|---|", "---|" * len(columns), sep="")
