"""The rooms of the house, written once: `layers` of the import contract in pyproject.toml.

The repository is flat and its code is imported as kvferry.*: `setup.py` takes from here what is installed, and

    python rooms.py

lays build/typing out as the house is once installed, for tools that read files: mypy, import-linter, and editors
(pyproject.toml names it to pyright; elsewhere mark it as a source root).
"""

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
DOOR = "kvferry"


def rooms() -> list[str]:
    """Returns the rooms from the lowest floor up."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    (floors,) = (one["layers"] for one in tools["importlinter"]["contracts"] if one["type"] == "layers")
    return [floor.removeprefix(f"{DOOR}.") for floor in reversed(floors)]


def packages() -> dict[str, str]:
    """Returns the folder of each package, by the name that it is imported by."""
    found = {DOOR: DOOR}
    for room in rooms():
        folders = sorted(file.parent.relative_to(ROOT) for file in (ROOT / room).rglob("__init__.py"))
        found |= {".".join((DOOR, *folder.parts)): folder.as_posix() for folder in folders}
    return found


def lay_out(folder: Path) -> None:
    """Fills the folder with a package that has the rooms in it, each a link to the repository's own."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / DOOR).mkdir(parents=True)
    for inside in [*(ROOT / room for room in rooms()), *(ROOT / DOOR).iterdir()]:
        if inside.name != "__pycache__":
            (folder / DOOR / inside.name).symlink_to(inside)


if __name__ == "__main__":
    lay_out(ROOT / "build" / "typing")
