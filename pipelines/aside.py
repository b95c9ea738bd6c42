"""What a plugin prints goes to standard error: standard output has the result, and with --json nothing else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TextIO

_lock = Lock()
# How many are inside, in this thread or others, and where standard output went before the first of them came.
_inside = 0
_before: TextIO | None = None


@contextmanager
def printing_aside() -> Iterator[None]:
    """``print`` writes to standard error meanwhile, in all threads of the process."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before, sys.stdout = sys.stdout, sys.stderr
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _before is not None:
                sys.stdout, _before = _before, None
