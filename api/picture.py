"""Pictures that show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.analysis.folder import write_pictures
from kvferry.analysis.style import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
