"""What processes begun here do not inherit."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_SAFE_PATH = "PYTHONSAFEPATH"
_lock = Lock()


@contextmanager
def sheltered() -> Iterator[None]:
    """Processes begun in this block leave Ctrl-C, which a terminal sends to all, to the one who began them, from their
    first moment on; and their Python imports nothing from the folder that the user happens to be in."""
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
