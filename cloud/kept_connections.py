"""Connections of a client to one server, over HTTP, each kept for the next request."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from kvferry.cloud.http_answer import PIECE_BYTES, HttpAnswer
from kvferry.cloud.watched_sockets import Moving, WatchedSockets
from kvferry.specs.errors import InputError

# What is put is given up where it goes more slowly.
_SLOWEST_BYTES_PER_S = 10_000


class KeptConnections:
    """``idle``: connections that no request uses. Raises InputError for a URL that is no server."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        try:
            parts = urlsplit(url)
            self._kind = {"http": HTTPConnection, "https": HTTPSConnection}[parts.scheme]
            self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
            if not self._host or parts.query or parts.username:
                raise ValueError
        except (ValueError, KeyError):
            raise InputError(f"{url[:200]!r} is no server; write it like http://127.0.0.1:8100") from None
        self.idle: list[HTTPConnection] = []
        self.watched = WatchedSockets()

    def open(self, connections: int) -> None:
        """Open connections until there are this many. Stops at the first that cannot be opened."""
        with suppress(OSError, HTTPException):
            while len(self.idle) < connections:
                connection = self._new()
                connection.connect()
                self.idle.append(connection)

    @contextmanager
    def answer(
        self, method: str, path: str, headers: Mapping[str, str], moving: Moving | None, body: bytes = b""
    ) -> Iterator[HttpAnswer]:
        """The server's answer to this request, whatever it says."""
        connection, answer = self._asked(method, self._path + path, headers, moving, body)
        try:
            yield answer
            # The rest of a response that is not read to its end would be taken for the next one's beginning.
            if answer.response.isclosed():
                self.idle.append(connection)
                return
        except BaseException:
            connection.close()
            raise
        connection.close()

    def close(self) -> None:
        self.watched.close()
        self._drop_kept()

    def _asked(
        self, method: str, path: str, headers: Mapping[str, str], moving: Moving | None, body: bytes
    ) -> tuple[HTTPConnection, HttpAnswer]:
        """Send a request over a kept connection, if there is one. If that one is dead, all kept ones are closed (the
        server closed or restarted) and the request is sent over a new one; this does not count as a failure."""
        try:
            kept = self.idle.pop()
        except IndexError:
            return self._asked_over(self._new(), method, path, headers, moving, body)
        try:
            return self._asked_over(kept, method, path, headers, moving, body)
        except (OSError, HTTPException) as error:
            self._drop_kept()
            # After a timeout the server may be there, and slow: waiting as long again is another attempt.
            if isinstance(error, TimeoutError) or (moving is not None and moving.is_set()):
                raise
        return self._asked_over(self._new(), method, path, headers, moving, body)

    def _new(self) -> HTTPConnection:
        return self._kind(self._host or "", self._port, timeout=self._timeout_s)

    def _asked_over(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        moving: Moving | None,
        body: bytes,
    ) -> tuple[HTTPConnection, HttpAnswer]:
        """Raises TimeoutError when the whole head of the answer has not arrived within `timeout_s`, and what it takes
        for the body to arrive over a link that is hardly one."""
        try:
            if body:
                pieces = (body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES))
                connection.request(method, path, pieces, {**headers, "content-length": str(len(body))})
            else:
                connection.request(method, path, headers=headers)
            connected = connection.sock  # the connection forgets it when the answer is to be the last
            deadline_s = time.monotonic() + self._timeout_s + len(body) / _SLOWEST_BYTES_PER_S
            try:
                with self.watched.while_(connected, moving, deadline_s):
                    response = connection.getresponse()
            except (OSError, HTTPException):
                if time.monotonic() < deadline_s:
                    raise
            # A head that was cut off at the deadline can look like a short one.
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"no whole head of an answer came within {self._timeout_s:g} s")
            return connection, HttpAnswer(response, connected, self.watched, self._timeout_s)
        except BaseException:
            connection.close()
            raise

    def _drop_kept(self) -> None:
        with suppress(IndexError):
            while True:
                self.idle.pop().close()
