"""The sockets of a wire, which are shut together."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from threading import Lock, Timer

from kvferry.backends.live.wire.event import NoEvent
from kvferry.specs.errors import KvferryError


class OpenSockets:
    """Sockets that a hang-up shuts, and those that come behind it at once. Several threads may use it."""

    def __init__(self) -> None:
        self._sockets: set[socket.socket] = set()
        self._lock = Lock()
        self.hung_up = False

    def hang_up(self) -> None:
        """Shut them all: who waits for one of them does so no longer."""
        self.hung_up = True
        with self._lock:
            for wire in self._sockets:
                _shut(wire)

    def keep(self, wire: socket.socket) -> None:
        with self._lock:
            self._sockets.add(wire)
            if self.hung_up:
                _shut(wire)

    def forget(self, wire: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(wire)

    @contextmanager
    def within(self, connection: HTTPConnection, seconds: float) -> Iterator[None]:
        """Shuts the connection's socket after so long, or with the others: a socket's own time-out starts again with
        every byte."""
        connection.connect()
        wire = connection.sock
        self.keep(wire)
        late = Timer(seconds, _shut, (wire,))
        late.daemon = True
        # Read before: a thread that starts may be shutting the socket before this one goes on.
        until_s = time.monotonic() + seconds
        late.start()
        try:
            yield
        except (OSError, HTTPException, KvferryError, NoEvent):
            # What was cut off can look like anything.
            if time.monotonic() >= until_s:
                raise TimeoutError(f"it has not answered within {seconds:g} s") from None
            raise
        finally:
            late.cancel()
            self.forget(wire)


def _shut(wire: socket.socket) -> None:
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
