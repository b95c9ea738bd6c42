"""Progress on standard error: bars and spinners on a terminal, nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvferry.specs.errors import quoted

# Called with how much is done, of how much.
Progress = Callable[[int, int], None]


@contextmanager
def counted(doing: str) -> Iterator[Progress]:
    """A bar that moves as the given function is called."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """The same for named steps, reported as "part: detail"; without a terminal, one line per part."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda name, done, of: bar.update(task, description=name, completed=done, total=of)
        return
    said = ""

    def line(name: str, done: int, of: int) -> None:
        nonlocal said
        part = name.partition(":")[0]
        if part != said:
            said = part
            say(f"{done} of {of}: {part}")

    yield line


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """A sign of life where nothing can be counted."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


def say(message: str) -> None:
    """Print a line for people, ``quoted``: never on standard output, where results go."""
    print(quoted(message), file=sys.stderr)
