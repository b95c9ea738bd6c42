"""Draws the house: how large each room is and which rooms it imports from, read from the code's own imports.

usage: python studies/house.py [PICTURE]
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent.parent
TOOLS = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["importlinter"]
# Highest first, as import-linter checks them.
ROOMS = [name.split(".")[1] for name in TOOLS["contracts"][0]["layers"]]
# No room should be larger: a part of all lines.
LARGEST = 0.15


def files(room: str) -> list[Path]:
    return sorted((HERE / room).rglob("*.py"))


def sizes(room: str) -> dict[str, int]:
    """Lines by folder of the room, as `kvferry/backends/live/engine` is "live/engine"; the largest first."""
    lines: Counter[str] = Counter()
    for file in files(room):
        lines[file.parent.relative_to(HERE / room).as_posix()] += file.read_text().count("\n")
    return dict(lines.most_common())


def imported(file: Path) -> Iterator[str]:
    """The rooms that a file imports from, those inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvferry."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("kvferry."))


def arrows() -> Counter[tuple[str, str]]:
    """How many files of one room import from another."""
    return Counter((room, other) for room in ROOMS for file in files(room) for other in set(imported(file)) - {room})


def draw(picture: Path) -> None:
    lines = {room: sizes(room) for room in ROOMS}
    whole = sum(sum(parts.values()) for parts in lines.values())
    found, count = arrows(), len(ROOMS)
    plt.rcParams["font.size"] = 9
    figure, (rooms, table) = plt.subplots(1, 2, figsize=(12, 5.6), width_ratios=(1.25, 1), layout="constrained")
    for floor, room in enumerate(ROOMS):
        left = 0
        for n, (part, size) in enumerate(lines[room].items()):
            shade = ("0.72", "0.9")[n % 2]
            rooms.barh(floor, size, left=left, color=shade, edgecolor="black", linewidth=0.8)
            if size > 0.025 * whole and part != ".":
                rooms.text(left + size / 2, floor, part.split("/")[-1], ha="center", va="center", fontsize=7)
            left += size
        rooms.text(
            left + 0.004 * whole,
            floor,
            f"{left:,}  ({left / whole:.0%})",
            va="center",
            bbox={"color": "white", "pad": 1},
        )
    rooms.axvline(LARGEST * whole, color="black", linestyle=":", linewidth=1)
    rooms.text(LARGEST * whole, count - 0.4, f" {LARGEST:.0%}", va="bottom", fontsize=8)
    rooms.set_yticks(range(count), ROOMS)
    rooms.set_ylim(count - 0.4, -0.6)
    rooms.set_xlim(0, 1.25 * max(sum(parts.values()) for parts in lines.values()))
    rooms.set_xlabel(f"lines of code; {whole:,} in all")
    rooms.set_title("Rooms, and the folders in them")
    for row, room in enumerate(ROOMS):
        for column, other in enumerate(ROOMS):
            n = found[room, other]
            upward = column < row
            if column != row:
                # An import upwards is black: import-linter refuses it.
                shade = "black" if n and upward else str(1 - 0.45 * min(1.0, n / 20)) if n else "white"
                box = plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=shade, edgecolor="0.8", linewidth=0.5)
                table.add_patch(box)
                table.text(column, row, str(n or ""), ha="center", va="center", color="white" if upward else "black")
            else:
                table.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="0.25"))
    table.set_xlim(-0.5, count - 0.5)
    table.set_ylim(count - 0.5, -0.5)
    table.set_xticks(range(count), ROOMS, rotation=60, ha="left", rotation_mode="anchor")
    table.xaxis.tick_top()
    table.set_yticks(range(count), ROOMS)
    table.tick_params(length=0)
    table.set_title("Files of a row's room that import from a column's")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "docs" / "pictures" / "house.png")
