"""Writes what comes out of each case of a page below its command: ``make docs`` calls it.

    python studies/advice_cases.py docs/advice.md --picture docs/pictures/advice-map.png

Each block of the page that has one ``$ kvferry advise`` is run, with all the time that it takes. The picture is of the
first one, which shows more of its answer than the others.
"""

import argparse
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from kvferry.advice.advise import advise
from kvferry.advice.answer import Answer
from kvferry.advice.screen import lines_of

# What is shown of the first answer and of others, by letter, and how many lines of each at most.
FIRST = {"a": 1, "b": 2, "c": 1, "d": 1, "e": 1, "f": 2, "g": 1, "i": 2}
OTHERS = {"b": 2, "c": 0, "i": 2}
# Lines that are shown wherever they stand.
_ALWAYS = ("giving up more", "losing nothing", "not in these intervals")
_WIDTH = 118
_BLOCK = re.compile(r"```console\n(\$ kvferry advise [^\n]*)\n.*?```", re.DOTALL)


def arguments(command: str) -> dict[str, Any]:
    """Returns a command's options as arguments of ``advise``."""
    words = shlex.split(command.removeprefix("$ kvferry advise "))
    found: dict[str, Any] = {"settings": []}
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--set":
            found["settings"].append(value)
        else:
            found[option.removeprefix("--").replace("-", "_")] = value
    return found


def shown(found: Answer, most_lines: Mapping[str, int]) -> str:
    """Returns the lines of an answer that a page has: how many of each letter at most, and what is faster but gives up
    more, or loses nothing."""
    lines = []
    for one in found.statements:
        if one.key in most_lines:
            first, others = one.lines[: most_lines[one.key]], one.lines[most_lines[one.key] :]
            gives = [line for line in others if line.startswith(_ALWAYS)]
            lines += lines_of(one.title, [*first, *gives], _WIDTH)
    return "\n".join(lines)


def case(number: int, command: str, picture: Path | None) -> tuple[str, str]:
    """Returns what came out of a case, and what is said of it; writes its map to `picture`."""
    with tempfile.TemporaryDirectory() as folder:
        found = advise(**arguments(command), limit_s=None, output=None if picture is None else folder)
        if picture is not None:
            shutil.copyfile(Path(folder) / "plots" / "map-memory.png", picture)
    said = f"{number}: {found.best.composition.name}, {dict(found.processor_s)}"
    return shown(found, OTHERS if number else FIRST), said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--picture", type=Path, help="Where the map of the first case goes.")
    parser.add_argument("--only", type=int, help="One case, from 0.")
    asked = parser.parse_args()
    text = asked.page.read_text()
    commands = [block[1] for block in _BLOCK.finditer(text)]
    numbers = [n for n in range(len(commands)) if asked.only in (None, n)]
    # All at once: a busy machine shares its time among them.
    with ProcessPoolExecutor(len(numbers)) as pool:
        runs = {n: pool.submit(case, n, commands[n], None if n else asked.picture) for n in numbers}
        found = {n: run.result() for n, run in runs.items()}
    for _, said in found.values():
        print(said, flush=True)
    order = iter(range(len(commands)))

    def again(block: re.Match[str]) -> str:
        number = next(order)
        return f"```console\n{block[1]}\n{found[number][0]}\n```" if number in found else block[0]

    asked.page.write_text(_BLOCK.sub(again, text))


if __name__ == "__main__":
    main()
