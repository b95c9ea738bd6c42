"""One request: when it comes, and how much it reads and answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A request that comes at `arrival_s`, reads a context and a question behind it, and asks for `output` tokens.

    ``source`` is the number of the context, where several requests may be about one.
    """

    arrival_s: float
    context: int
    output: int
    question: int = 0
    source: int = 0
