"""Tables of the terminal for a notebook."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from kvferry.specs.errors import quoted

if TYPE_CHECKING:
    from rich.table import Table

# Rich would show a table in a notebook by itself, in the wrong place. A notebook's own colours
# stay; lines that do not fit are scrolled to.
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'
_WIDTH = 400


def table_html(table: Table, remarks: Sequence[str] = ()) -> str:
    """The table that the command prints, and remarks under it."""
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=_WIDTH, highlight=False, force_jupyter=False)
    console.print(table)
    return with_remarks(console.export_html(inline_styles=True, code_format=_PRE), remarks)


def with_remarks(html: str, remarks: Sequence[str]) -> str:
    """A table of HTML, and remarks under it."""
    return html + "".join(f"<p>{escape(quoted(remark))}</p>" for remark in remarks)


def table_text(table: Table) -> str:
    """The same without colours."""
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=_WIDTH, highlight=False, color_system=None, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
