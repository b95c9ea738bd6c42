"""Progress on standard error: bars and spinners on a terminal, a line now and then elsewhere."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

from kvferry.specs.errors import quoted

if TYPE_CHECKING:
    from kvferry.analysis.search import Search
    from kvferry.analysis.study import Study

# Called with how much is done, of how much.
Progress = Callable[[int, int], None]
# Where no bar can be drawn: the first line after so long, and from one line to the next.
LINE_AFTER_S, _LINE_EVERY_S = 10.0, 15.0
_MOST_FAILED = 20
# Done before a pace is known, where there are many.
_SOME = 8


class Silence:
    """How long nothing was said."""

    def __init__(self) -> None:
        self._since_s = monotonic()

    def left_s(self) -> float:
        """Until a line is due."""
        return max(0.0, self._since_s + LINE_AFTER_S - monotonic())

    def end(self) -> None:
        """Something is said."""
        self._since_s = monotonic()


def in_turn(what: str = "") -> Callable[[str], AbstractContextManager[Progress]]:
    """Returns ``counted`` for works that follow each other: the first line comes as of one that takes as long as
    all."""
    return partial(counted, what=what, silence=Silence())


@contextmanager
def counted(doing: str, what: str = "", silence: Silence | None = None) -> Iterator[Progress]:
    """Gives a function that moves a bar; where there is no terminal, lines say how far it came, with `what` behind the
    counts, once something takes long. `silence` has lasted since before, where works follow each other."""
    if not sys.stderr.isatty():
        with _Lines(doing, what, silence) as lines:
            yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("{task.fields[left]}"),)
    estimate = Estimate(monotonic)
    with Bar(*columns, *left, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None, left="")
        yield lambda done, of: bar.update(task, completed=done, total=of, left=estimate.in_words(done, of))


class Estimate:
    """How long the rest will take, at the pace of what was done since the first call; unknown until some is done: the
    first points of a sweep pay for what all of them share."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._began: tuple[float, int] | None = None

    def in_words(self, done: int, of: int) -> str:
        """ "about 3 min left"; "" while nothing is known, and when nothing is left."""
        now_s = self._clock_s()
        self._began = self._began or (now_s, done)
        began_s, before = self._began
        some = min(_SOME, max(1, (of - before) // 4))
        if not before + some <= done < of:
            return ""
        left_s = (of - done) * (now_s - began_s) / (done - before)
        for unit, length_s in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            if left_s >= 1.95 * length_s or unit == "s":
                return f"about {max(1, round(left_s / length_s))} {unit} left"
        raise AssertionError


class _Lines:
    """Lines from a thread of their own, as long work need not call before it is done."""

    def __init__(self, doing: str, what: str, silence: Silence | None = None) -> None:
        self._doing, self._what, self._began_s = doing, what, monotonic()
        self._silence = silence or Silence()
        self._at: tuple[int, int] | None = None
        self._estimate, self._left, self._over = Estimate(monotonic), "", Event()
        self._thread = Thread(target=self._say, name="progress", daemon=True)

    def __enter__(self) -> "_Lines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __call__(self, done: int, of: int) -> None:
        self._at, self._left = (done, of), self._estimate.in_words(done, of)

    def _say(self) -> None:
        due_s = self._silence.left_s()
        while not self._over.wait(due_s):
            counts = "" if self._at is None else f"{self._at[0]:,} of {self._at[1]:,}{self._what}, "
            rest = f", {self._left}" if self._left else ""
            say(f"{self._doing}: {counts}{monotonic() - self._began_s:.0f} s so far{rest}")
            self._silence.end()
            due_s = _LINE_EVERY_S


@contextmanager
def points_of(loaded: "Study | Search", folder: Path) -> Iterator[Progress]:
    """Gives a function that moves a bar as points of a study or a search are done, whose remarks are said before.
    Interrupted, it says what was kept, and the command ends."""
    import typer

    for line in loaded.remarks:
        say(quoted(line))
    came = 0, 0

    def progress(done: int, of: int) -> None:
        nonlocal came
        came = done, of
        bar(done, of)

    try:
        with counted(loaded.name, " points") as bar:
            yield progress
    except KeyboardInterrupt:
        say(f"interrupted; kept {came[0]:,} of {came[1]:,} points in {folder}; run it again to go on")
        raise typer.Exit(130) from None


def say_failures(failures: Sequence[str]) -> None:
    """Says the first of them, a line each."""
    for line in failures[:_MOST_FAILED]:
        say(line)
    if len(failures) > _MOST_FAILED:
        say(f"... and {len(failures) - _MOST_FAILED:,} more")


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
            # Of steps whose number is not known there is no end to draw.
            yield lambda name, done, of: bar.update(task, description=name, completed=done, total=of or None)
        return
    said = ""

    def line(name: str, done: int, of: int) -> None:
        nonlocal said
        part = name.partition(":")[0]
        if part != said:
            said = part
            say(f"{done} of {of}: {part}" if of else part)

    yield line


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """A sign of life where nothing can be counted."""
    if not sys.stderr.isatty():
        with _Lines(doing, ""):
            yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


def say(message: str) -> None:
    """Print a line for people, ``quoted``: never on standard output, where results go."""
    print(quoted(message), file=sys.stderr)
