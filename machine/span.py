"""One record per finished piece of work; machines call `tell` with it."""

from collections.abc import Callable
from typing import NamedTuple


class Span(NamedTuple):
    """One resource busy from start to end. `resource` is a name such as link, gpu, copy, decompress, storage."""

    resource: str
    label: str
    start_s: float
    end_s: float
    n_bytes: float = 0.0
    request: int | None = None


Tell = Callable[[Span], None]
