"""The client of the cloud, over HTTP: returns whole, checked chunks, or raises LinkDown; never half a chunk.

A transfer whose connection breaks continues where it broke off; a damaged chunk is fetched again; a cloud that stays
away is given up after a few seconds, so that the pipeline can compute what is missing.

Built on http.client: a fetch takes a third of the processor time that it takes with httpx, and on a small device that
time is taken from the model. Proxies and passwords in the environment are ignored.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import socket
from urllib.parse import quote, urlsplit

from kvferry.cloud.chunk_ids import write_ids
from kvferry.cloud.patience import Patience, Steady, one_line
from kvferry.cloud.store import MOST_TABLE_BYTES, DamagedStore, Index, StoredModel
from kvferry.cloud.watched_sockets import Moving, WatchedSockets
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, LinkDown
from kvferry.system.aligned_memory import aligned_memory
from kvferry.system.checksum import crc32

# Most bytes of one read from a body of unknown length, or of what arrived together with the head.
_PIECE_BYTES = 2**18
# What is put is given up where it goes more slowly.
_SLOWEST_BYTES_PER_S = 10_000
# Memory for payloads is taken in pieces of this size: several large pages, and a moment of a fast link.
_ROOM_BYTES = 2**24


class WrongToken(InputError):
    """The server needs a token, or another one."""


class _Unusable(Exception):
    """An answer that cannot be used; the next attempt may bring a better one."""


_MAY_PASS = (OSError, HTTPException, _Unusable)
# The trace has ended, the store was replaced, the store is damaged: asking again would bring the same.
_FINAL = (410, 412, 500)
# A connection, the socket that its answer arrives on, and the answer, whose head has been read.
_Asked = tuple[HTTPConnection, socket, HTTPResponse]


class CloudClient:
    """A `Fetcher`. Each fetch under way has a connection of its own, which is kept for the next fetch.

    ``names`` turns the sequence of a `Chunks` into the name of its context. A fetch is given up when the server

    - was silent for `timeout_s`, `attempts` times: no connection, no whole head, or hardly a byte of the body; or
    - refused, broke off or answered with an error for `away_s` in a row, without bringing anything in between.

    Raises InputError for a URL or token that cannot be one. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        names: Callable[[int], str] = str,
        timeout_s: float = 10.0,
        attempts: int = 4,
        away_s: float = 2.0,
    ) -> None:
        self.url, self._names = url, names
        self._timeout_s, self._attempts, self._away_s = timeout_s, attempts, away_s
        try:
            parts = urlsplit(url)
            self._kind = {"http": HTTPConnection, "https": HTTPSConnection}[parts.scheme]
            self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
            if not self._host or parts.query or parts.username:
                raise ValueError
        except (ValueError, KeyError):
            raise InputError(f"{url[:200]!r} is no server; write it like http://127.0.0.1:8100") from None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InputError("a token has letters, digits and signs only")
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._idle: list[HTTPConnection] = []
        self._opened: dict[str, tuple[Index, str]] = {}
        # Whether the server has answered anything but a refusal: a token that it knew then is no mistake of the user's.
        self._let_in = False
        self._lock = threading.Lock()
        self._watched = WatchedSockets()
        self._room = _Room()

    def contexts(self) -> list[str]:
        """The names of the contexts in the cloud. Raises LinkDown, InputError."""
        return self._get("/contexts")[0].decode().splitlines()

    def index(self, name: str, model: StoredModel | None = None) -> Index:
        """A context's index, fetched once. With a model, raises InputError when the store was made for another.

        Raises LinkDown; InputError for a context that is not there; DamagedStore for an answer that is no index.
        """
        index, _ = self._open(name)
        if model is not None:
            index.check_model(model)
        return index

    def connect(self, connections: int) -> None:
        """Open connections until there are this many, so that fetches which begin together do not wait for them. Stops
        at the first that cannot be opened; a later fetch will try again."""
        with suppress(OSError, HTTPException):
            while len(self._idle) < connections:
                connection = self._new()
                connection.connect()
                self._idle.append(connection)

    def restart_replay(self) -> None:
        """Restart the trace of the server's link. Raises LinkDown, InputError."""
        self._get("/replay", "POST")

    def put(self, name: str, content: bytes, index: Index) -> None:
        """Has the server keep a whole store, whose index is known from then on. Raises LinkDown, InputError."""
        patience, path = Patience(self.url, self._attempts, self._away_s), f"/contexts/{quote(name, safe='')}"
        while True:
            try:
                with self._answer("PUT", path, {}, None, content) as (response, connected):
                    self._whole(response, connected, 0)
                    tag = response.headers.get("etag", "*")
            except _MAY_PASS as error:
                time.sleep(patience.pause_s(error))
            else:
                with self._lock:
                    self._opened[name] = index, tag
                return

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> memoryview:
        """The encoded chunks, one after the other, each with the checksum of its index.

        Calls `moving.moved` as bytes arrive. Once `moving` is set, returns an empty payload within milliseconds. Raises
        LinkDown, also where the server no longer knows a token or context that it knew; InputError for a token, context
        or chunk that it never did.
        """
        name = self._names(chunks.sequence)
        index, tag = self._open(name)
        ids, lengths = chunks.ids, index.lengths_of(chunks.ids, chunks.level)
        context = f"/contexts/{quote(name, safe='')}/chunks?level={chunks.level}&ids="
        payload = self._room.take(sum(lengths))
        self._download(context + write_ids(ids), tag, payload, request, moving)
        end = 0
        for i, length, checksum in zip(ids, lengths, index.checksums_of(ids, chunks.level), strict=True):
            chunk = payload[end : end + length]
            end += length
            for _ in range(self._attempts):
                if moving.is_set():
                    return payload[:0]
                if crc32(chunk) == checksum:
                    break
                self._download(f"{context}{i}", tag, chunk, request, moving)
            else:
                raise LinkDown(f"{self.url}: chunk {i} of context {name!r} keeps coming in damaged")
        return payload.toreadonly()

    def close(self) -> None:
        self._watched.close()
        self._drop_kept()

    def __enter__(self) -> "CloudClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, name: str) -> tuple[Index, str]:
        with self._lock:
            if name not in self._opened:
                table, tag = self._get(f"/contexts/{quote(name, safe='')}/index")
                try:
                    self._opened[name] = Index.from_bytes(table), tag
                except DamagedStore as error:
                    raise DamagedStore(f"{self.url}: context {name!r}: {error}") from None
            return self._opened[name]

    def _get(self, path: str, method: str = "GET") -> tuple[bytes, str]:
        """The whole body of a short answer, and its ETag."""
        patience = Patience(self.url, self._attempts, self._away_s)
        while True:
            try:
                with self._answer(method, path, {}, None) as (response, connected):
                    return self._whole(response, connected, MOST_TABLE_BYTES), response.headers.get("etag", "*")
            except _MAY_PASS as error:
                time.sleep(patience.pause_s(error))

    def _download(self, path: str, tag: str, into: memoryview, request: int | None, moving: Moving) -> None:
        """Fill this memory, over as many connections as it takes. Stops early once `moving` is set."""
        headers = {"if-match": tag} | ({} if request is None else {"kvferry-flow": str(request)})
        n_bytes, have = len(into), 0
        patience = Patience(self.url, self._attempts, self._away_s)
        while have < n_bytes and not moving.is_set():
            before = have
            try:
                with self._answer("GET", path, headers | {"range": f"bytes={have}-"}, moving) as (response, connected):
                    if response.headers.get("content-range") != f"bytes {have}-{n_bytes - 1}/{n_bytes}":
                        raise _Unusable("its answer is another part than was asked for")
                    if response.length != n_bytes - have:
                        raise _Unusable("its answer has another length than was asked for")
                    with self._watched.while_(connected, moving):
                        for came in self._filling(into[have:], response, connected):
                            have += came
                            moving.moved(came)
            except _MAY_PASS as error:
                patience.came(have - before)
                if not moving.is_set():
                    moving.wait(patience.pause_s(error))

    @contextmanager
    def _answer(
        self, method: str, path: str, headers: dict[str, str], moving: Moving | None, body: bytes = b""
    ) -> Iterator[tuple[HTTPResponse, socket]]:
        """The server's answer to this request, and the socket that it arrives on. A refusal raises what it means."""
        connection, connected, response = self._asked(method, self._path + path, self._headers | headers, moving, body)
        try:
            self._check(response, connected, known="if-match" in headers)
            yield response, connected
            # The rest of a response that is not read to its end would be taken for the next one's beginning.
            if response.isclosed():
                self._idle.append(connection)
                return
        except BaseException:
            connection.close()
            raise
        connection.close()

    def _asked(
        self, method: str, path: str, headers: dict[str, str], moving: Moving | None, body: bytes = b""
    ) -> _Asked:
        """Send a request over a kept connection, if there is one. If that one is dead, all kept ones are closed (the
        server closed or restarted) and the request is sent over a new one; this does not count as a failure."""
        try:
            kept = self._idle.pop()
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
        return self._kind(self._host, self._port, timeout=self._timeout_s)

    def _asked_over(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        headers: dict[str, str],
        moving: Moving | None,
        body: bytes = b"",
    ) -> _Asked:
        """Raises TimeoutError when the whole head of the answer has not arrived within `timeout_s`, and what it takes
        for the body to arrive over a link that is hardly one."""
        try:
            if body:
                pieces = (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))
                connection.request(method, path, pieces, {**headers, "content-length": str(len(body))})
            else:
                connection.request(method, path, headers=headers)
            connected = connection.sock  # the connection forgets it when the answer is to be the last
            deadline_s = time.monotonic() + self._timeout_s + len(body) / _SLOWEST_BYTES_PER_S
            try:
                with self._watched.while_(connected, moving, deadline_s):
                    response = connection.getresponse()
            except (OSError, HTTPException):
                if time.monotonic() < deadline_s:
                    raise
            # A head that was cut off at the deadline can look like a short one.
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"no whole head of an answer came within {self._timeout_s:g} s")
            return connection, connected, response
        except BaseException:
            connection.close()
            raise

    def _drop_kept(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _whole(self, response: HTTPResponse, connected: socket, most_bytes: int) -> bytes:
        """The whole body. A read that has not ended within `timeout_s`, as of a chunk's length or of trailers that are
        sent drop by drop, is the last."""
        pieces, have, steady = list[bytes](), 0, Steady(self._timeout_s)

        def read() -> bytes:
            with self._watched.while_(connected, None, time.monotonic() + self._timeout_s):
                return response.read1(_PIECE_BYTES)

        while piece := read():
            have += len(piece)
            if have > most_bytes:
                raise _Unusable(f"more than {most_bytes:,} bytes came")
            pieces.append(piece)
            steady.came(len(piece))
        if response.length:
            raise _Unusable(f"the connection broke off with {response.length:,} bytes to come")
        response.read()  # returns nothing, but notices the end, so that the connection can be used again
        return b"".join(pieces)

    def _filling(self, into: memoryview, response: HTTPResponse, connected: socket) -> Iterator[int]:
        """Receive a body of known length into this memory; yields how many bytes came, each time some did."""
        steady = Steady(self._timeout_s)
        # What came along with the head is in http.client's buffer; the rest is received without another copy.
        first = response.read1(_PIECE_BYTES)
        have = came = len(first)
        into[:have] = first
        while came:
            yield came
            if have == len(into):
                response.close()  # and the connection can be used again
                return
            steady.came(came)
            came = connected.recv_into(into[have:])
            have += came
        raise _Unusable(f"the connection broke off with {len(into) - have:,} bytes to come")

    def _check(self, response: HTTPResponse, connected: socket, known: bool) -> None:
        """Raise what a refusal means, with the words that come within `timeout_s`. `known`: the server has had what is
        asked for."""
        if response.status < 300:
            self._let_in = True
            return
        said = b""
        with suppress(*_MAY_PASS), self._watched.while_(connected, None, time.monotonic() + self._timeout_s):
            said = response.read(500)
        words = one_line(said.decode("utf-8", "replace")) or one_line(f"{response.status} {response.reason}")
        text = f"{self.url}: {words}"
        # Where it has given before, that still counts, and what is missing is computed.
        if response.status in (401, 403) and self._let_in:
            raise LinkDown(f"{self.url} lets nobody in any more: {words}")
        if response.status in _FINAL:
            raise LinkDown(text)
        if known and response.status < 500:
            raise LinkDown(f"{self.url} gives no more: {response.status} {words}")
        if response.status == 401:
            raise WrongToken(text)
        if response.status < 500:
            raise InputError(text)
        raise _Unusable(text)


class CloudGone:
    """A `Fetcher` in place of a cloud that could not be reached, or gave no index: without an index, no chunk can be
    fetched."""

    def __init__(self, why: str) -> None:
        self._why = why

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> memoryview:
        """Raises LinkDown."""
        raise LinkDown(self._why)


class _Room:
    """Memory for payloads, cut from large pieces: small new pages cost as much time as receiving into them. A piece is
    freed when no payload in it is used any more."""

    def __init__(self) -> None:
        self._left = memoryview(b"")
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> memoryview:
        """New memory for one payload."""
        with self._lock:
            if n_bytes > len(self._left):
                self._left = aligned_memory(max(n_bytes, _ROOM_BYTES))
            taken, self._left = self._left[:n_bytes], self._left[n_bytes:]
        return taken
