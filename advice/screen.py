"""An answer on one screen."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from kvferry.advice.answer import Answer

# Lines are no wider, however wide the terminal is; letters of a title's column, and of what goes on.
_WIDEST, _TITLE, _INDENT = 120, 13, 2


def screen(found: Answer, width: int) -> Iterator[str]:
    """Yields the lines of an answer: its question, then what its results say under each letter."""
    question = found.question
    device, use = question.device, question.use.spec
    yield f"{use.name} on {device.name}: {question.about}"
    for statement in found.statements:
        yield from lines_of(statement.title, statement.lines, min(width, _WIDEST))
    yield found.how_many


def lines_of(title: str, said: Sequence[str], width: int) -> Iterator[str]:
    """Yields what is said under a title, folded to a width; a word, as of a command, is never cut."""
    head = f"{title:<{_TITLE}}"
    for line in said:
        folded = wrap(line, max(40, width - _TITLE), break_long_words=False, break_on_hyphens=False)
        for n, part in enumerate(folded):
            yield f"{head}{' ' * _INDENT if n else ''}{part}"
            head = " " * _TITLE
