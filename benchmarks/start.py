"""What starting costs: processor time of whole commands, children and exit included, beside an empty Python."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from benchmarks.row import Row, lower

TIMES = 5
COMMANDS = {
    "kvferry --help": ["--help"],
    "kvferry run quickstart --json": ["run", "quickstart", "--json"],
    "kvferry run quickstart --no-plots": ["run", "quickstart", "--no-plots", "--output", "out"],
    "kvferry run quickstart": ["run", "quickstart", "--output", "out"],
}


def rows() -> Iterator[Row]:
    empty_s = _processor_s(["-c", "pass"])
    numpy_s = _processor_s(["-c", "import numpy"])
    yield lower("python -c 'import numpy' (ceiling: an empty Python)", numpy_s, "s", empty_s)
    for name, arguments in COMMANDS.items():
        took_s = _processor_s(["-c", "from kvferry.cli.main import main; main()", *arguments])
        yield lower(f"{name} (ceiling: numpy)", took_s, "s", numpy_s)


def _processor_s(arguments: list[str]) -> float:
    """Returns the least of some runs of a Python with these arguments, in a folder of its own."""
    return min(_once_s(arguments) for _ in range(TIMES))


def _once_s(arguments: list[str]) -> float:
    before_s = _children_s()
    with TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, *arguments], cwd=folder, env=env, check=True, capture_output=True)
    return _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
