"""An answer on one screen."""

from collections.abc import Iterator
from textwrap import wrap

from kvferry.advice.answer import Answer

# Lines are no wider, however wide the terminal is.
_WIDEST, _INDENT = 120, 4


def screen(found: Answer, width: int) -> Iterator[str]:
    """Yields the lines of an answer: its question, then what its results say under each letter."""
    question = found.question
    device, use = question.device, question.use.spec
    yield f"{use.name} on {device.name}: {use.about}"
    for statement in found.statements:
        head = f"{statement.title:<12}"
        for line in statement.lines:
            for n, part in enumerate(wrap(line, max(40, min(width, _WIDEST) - len(head) - 1))):
                yield f"{head} {' ' * (_INDENT // 2) if n else ''}{part}"
                head = " " * len(head)
    kind = "few turns of each" if found.coarse else "all turns of the use"
    yield f"{found.tried} compositions were run, {kind}"
