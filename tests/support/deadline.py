"""A test that waits for another process ends by itself, whatever that process does."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread where the block has not ended by then."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test has not ended within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
