"""The server's connections: how many there may be, and how long each may keep the server waiting."""

import asyncio
import fcntl
import select
import selectors
import signal
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# select() takes no descriptor beyond this one.
_FD_SETSIZE = 1024


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop on epoll or kqueue, whichever the platform has. Holds signals back until the loop is complete: one
    that is torn down half made prints "Exception ignored"."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        if hasattr(selectors, "EpollSelector"):
            return asyncio.SelectorEventLoop(_PreciseEpollSelector())
        return asyncio.SelectorEventLoop(selectors.DefaultSelector())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if hasattr(selectors, "EpollSelector"):

    class _PreciseEpollSelector(selectors.EpollSelector):
        """epoll, with waits that end within microseconds of their time.

        epoll itself counts in whole milliseconds, rounded up, which would delay every slice of a replayed link. Its
        descriptor can be waited for like any other, and select() counts in microseconds.
        """

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _FD_SETSIZE:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)


# Connections served at once. The one that has been idle the longest makes room for a new one.
MOST_CONNECTIONS = 256
# A request has this long to arrive, from its connection or its first byte to the end of its head.
HEAD_S = 10.0
# A client that takes none of the bytes sent to it for this long is cut off.
STALL_S = 10.0

# Lingering for 0 seconds: closing drops what is unsent.
_DROP = struct.pack("ii", 1, 0)
_CROWDED = b"all connections of this server are in use"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_CROWDED), _CROWDED)
)


class Connections:
    """The open connections of a server. At most `MOST_CONNECTIONS`; beyond that, idle ones are closed, the longest idle
    first, and a new connection is refused (status 503) when none is idle."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        # Those without a request under way; a dict keeps them in the order in which they became idle.
        self._idle: dict[Connection, None] = {}

    def admit(self, connection: "Connection") -> bool:
        """Count this connection in, and return whether there is room for it."""
        if len(self._open) >= MOST_CONNECTIONS:
            if not self._idle:
                return False
            longest_idle = next(iter(self._idle))
            self.remove(longest_idle)
            longest_idle.abort()
        self._open.add(connection)
        self._idle[connection] = None
        return True

    def remove(self, connection: "Connection") -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def set_idle(self, connection: "Connection", idle: bool) -> None:
        self._idle.pop(connection, None)
        if idle and connection in self._open:
            self._idle[connection] = None


class Connection(asyncio.Protocol):
    """A client's connection: uvicorn speaks HTTP over it, within bounds on time.

    Built on what asyncio and ASGI promise alone: this class sees every byte and every pause before uvicorn does, and
    the application says when a request begins and ends (`begin_request`, `end_request`).
    """

    def __init__(self, connections: Connections, *, app_state: dict[str, Any], **of_uvicorn: Any) -> None:
        self._connections = connections
        self._http = H11Protocol(app_state={**app_state, "connection": self}, **of_uvicorn)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # --- for the application -------------------------------------------------------------------------------------

    def begin_request(self) -> None:
        """A whole head has arrived."""
        self._requests += 1
        self._stop_head_timer()
        self._connections.set_idle(self, False)

    def end_request(self) -> None:
        self._requests -= 1
        self._look_idle()

    @property
    def closing(self) -> bool:
        """True once nothing that is sent will arrive any more."""
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        """Close at once and drop what still waits to be sent, in the system's buffers too."""
        if self._transport is not None and not self._transport.is_closing():
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)
            self._transport.abort()

    # --- for asyncio ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._connections.admit(self):
            transport.write(_REFUSAL)
            transport.close()
            return
        self._transport = transport
        # Without this, a small answer waits for the client to acknowledge the one before.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # pause_writing is then called as soon as any byte has to wait, and resume_writing when none does.
        transport.set_write_buffer_limits(high=0)
        self._start_head_timer()
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if not self._requests:
            self._start_head_timer()
        self._http.data_received(data)

    def eof_received(self) -> None:
        if self._transport is not None:
            self._http.eof_received()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._http.pause_writing()
        self._stall_timer = self._loop.call_later(STALL_S, self._look_stalled, self._unsent_bytes())

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        self._http.resume_writing()
        self._look_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        if self._transport is None:
            return
        self._stop_head_timer()
        self._stop_stall_timer()
        self._http.connection_lost(exc)

    # --- bounds --------------------------------------------------------------------------------------------------

    def _look_idle(self) -> None:
        if not self._requests and not self.closing:
            assert self._transport is not None
            self._connections.set_idle(self, not self._transport.get_write_buffer_size())

    def _look_stalled(self, unsent_bytes: int) -> None:
        still_unsent_bytes = self._unsent_bytes()
        if still_unsent_bytes >= unsent_bytes:
            self.abort()
        else:
            self._stall_timer = self._loop.call_later(STALL_S, self._look_stalled, still_unsent_bytes)

    def _unsent_bytes(self) -> int:
        """Bytes that wait in this process, and those in the system's buffer, as far as that can be asked. The system
        takes more only in steps of a megabyte or so: a slow client may need longer than `STALL_S` for one."""
        assert self._transport is not None
        in_system = bytes(4)
        with suppress(OSError):
            in_system = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, in_system)
        return self._transport.get_write_buffer_size() + int.from_bytes(in_system, sys.byteorder)

    @property
    def _socket(self) -> socket.socket:
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_S, self.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
