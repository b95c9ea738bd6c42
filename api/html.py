"""Tables of the terminal for a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.analysis.folder import write_pictures
from kvferry.analysis.style import render
from kvferry.specs.errors import quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
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


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture, drawn when it is first looked at. As the last value of a notebook's cell it shows itself."""

    name: str
    draw: Callable[[], Figure]

    @cached_property
    def _drawn(self) -> dict[str, bytes]:
        return render(self.draw)

    @property
    def png(self) -> bytes:
        """150 dots per inch."""
        return self._drawn["png"]

    @property
    def svg(self) -> bytes:
        return self._drawn["svg"]

    def save(self, folder: str | Path) -> list[Path]:
        """Writes NAME.png and NAME.svg into a folder, which is made if need be, and returns them. Raises KvferryError
        when they cannot be written."""
        return write_pictures(Path(folder) / self.name, self._drawn)

    def __repr__(self) -> str:
        return f"Picture({self.name!r})"

    def _repr_png_(self) -> bytes:
        return self.png
