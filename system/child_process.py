"""What child processes must not inherit."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_SAFE_PATH = "PYTHONSAFEPATH"
_lock = Lock()


@contextmanager
def sheltered() -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C from their first moment on: the terminal sends it to all, and the
    parent handles it. Their Python does not import modules from the user's current folder."""
    with _lock:
        before = os.environ.get(_SAFE_PATH)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
