"""Plain tables on standard output."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvferry.specs.errors import quoted


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a plain table on standard output; None is shown as a dash, and cells are ``quoted``."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from kvferry.analysis.tables import show

    drawn = Table(title=escape(quoted(title)) or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        drawn.add_column(escape(quoted(column)))
    for row in rows:
        drawn.add_row(*("-" if cell is None else escape(quoted(str(cell))) for cell in row))
    show(drawn)


def print_metrics(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], title: str = "") -> None:
    """Print records under the headings of their keys, then what else they have under its key; a number is written in
    the unit that its key ends in."""
    from kvferry.specs import human

    keys = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    cells = [
        [human.of_unit(key)(row[key]) if isinstance(row.get(key), int | float) else row.get(key) for key in keys]
        for row in rows
    ]
    print_table([columns.get(key, key) for key in keys], cells, title)
