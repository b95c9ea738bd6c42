"""Sockets of requests that may be cancelled, or whose head may be late."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, socket
from typing import Protocol

# How often sockets are checked for cancellation and deadlines.
_LOOK_S = 0.005


class Moving(Protocol):
    """Counts the bytes of a fetch (`moved`), and cancels it when set. See backends.live.engine.thread_work."""

    def moved(self, n_bytes: float) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class WatchedSockets:
    """Shuts down the sockets of requests that were cancelled, or whose head is late. Their threads wait in a read that
    nothing else can end: a socket's own timeout starts again with every byte."""

    def __init__(self) -> None:
        self._requests: dict[socket, tuple[Moving | None, float]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="kvferry cancelling", daemon=True).start()

    @contextmanager
    def while_(self, connected: socket, moving: Moving | None, deadline_s: float = math.inf) -> Iterator[None]:
        """In this block, the socket is shut down when `moving` is set or the deadline (of time.monotonic) passes."""
        with self._lock:
            self._requests[connected] = moving, deadline_s
        try:
            yield
        finally:
            # From here on the connection may be used by another request.
            with self._lock:
                del self._requests[connected]

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            if self._requests:
                now_s = time.monotonic()
                with self._lock:
                    for connected, (moving, deadline_s) in self._requests.items():
                        if now_s > deadline_s or (moving is not None and moving.is_set()):
                            with suppress(OSError):
                                connected.shutdown(SHUT_RDWR)
