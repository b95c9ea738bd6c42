"""The way to the cloud over HTTP: whole, checked chunks, or LinkDown; never half of one.

A dropped connection is taken up again where it broke off; a damaged chunk is asked for again; who stays away is given
up after a few attempts, so that the pipeline can compute what is missing.

On http.client: a fetch takes a third of the processor time that it takes with httpx, and on a small device that time
is the model's. Neither proxies nor passwords come from the environment.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import count
from socket import SHUT_RDWR, socket
from typing import Protocol
from urllib.parse import quote, urlsplit

from kvferry.cloud.chunk_ids import write_ids
from kvferry.cloud.store import MOST_TABLE_BYTES, DamagedStore, Index, StoredModel
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, LinkDown
from kvferry.system.aligned_memory import aligned_memory
from kvferry.system.checksum import crc32

# The least that must come in within `timeout_s`; less is a peer that feeds us drop by drop.
_LEAST_BYTES = 1024
_FIRST_PAUSE_S = 0.05
# What one reading takes at most of a body whose length is not known, or that came along with the head.
_PIECE_BYTES = 2**18
# A piece of memory for what comes in: several large pages, and not more than a moment of a fast link.
_ROOM_BYTES = 2**24
# How soon a transfer ends that nobody wants any more.
_LOOK_S = 0.005


class Moving(Protocol):
    """What a fetch and its owner tell each other: see backends.live.work."""

    def moved(self, n_bytes: float) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class WrongToken(InputError):
    """The server wants a token, or another one."""


class _Unusable(Exception):
    """An answer that is no use, and may be better next time."""


_MAY_PASS = (OSError, HTTPException, _Unusable)
# A connection, the socket that its answer comes over, and the answer as far as its head.
_Asked = tuple[HTTPConnection, socket, HTTPResponse]


class CloudClient:
    """A `Fetcher`; each thread that asks has a connection of its own, kept for the next one.

    ``names`` turns the sequence of a `Chunks` into the name of its context. `timeout_s` bounds each wait for the
    server; `attempts`, how often it may keep a fetch waiting for that long, or fail in a row without having brought
    anything. Raises InputError for a URL or token that is none. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        names: Callable[[int], str] = str,
        timeout_s: float = 10.0,
        attempts: int = 4,
    ) -> None:
        self.url, self._names, self._timeout_s, self._attempts = url, names, timeout_s, attempts
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
        self._lock = threading.Lock()
        self._wanted = _Wanted()
        self._room = _Room()

    def contexts(self) -> list[str]:
        """The names of what is there. Raises LinkDown, InputError."""
        return self._get("/contexts")[0].decode().splitlines()

    def index(self, name: str, model: StoredModel | None = None) -> Index:
        """A context's index, asked for once. With a model, raises InputError when the store was made for another.

        Raises LinkDown; InputError for a context that is not there; DamagedStore for what is no index.
        """
        index, _ = self._open(name)
        if model is not None:
            index.check_model(model)
        return index

    def connect(self, connections: int) -> None:
        """Have so many connections open, so that fetches which begin together wait for none. One that cannot be opened
        is not missed: whoever fetches tries again, and tells."""
        with suppress(OSError, HTTPException):
            while len(self._idle) < connections:
                connection = self._new()
                connection.connect()
                self._idle.append(connection)

    def restart_replay(self) -> None:
        """The server's link plays its trace from the beginning, now. Raises LinkDown, InputError."""
        self._get("/replay", "POST")

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> memoryview:
        """The encoded chunks, one after the other, each of them checked.

        Tells `moving` of bytes as they come in; when that is set, returns nothing within some milliseconds. Raises
        LinkDown; InputError for a token, context or chunk that the server does not know.
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
        self._wanted.close()
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
        """The whole of a short answer, and its ETag."""
        for failures in count(1):
            try:
                with self._answer(method, path, {}) as (response, _):
                    return self._whole(response, MOST_TABLE_BYTES), response.headers.get("etag", "*")
            except _MAY_PASS as error:
                self._pause(failures, error, threading.Event().wait)
        raise AssertionError

    def _download(self, path: str, tag: str, into: memoryview, request: int | None, moving: Moving) -> None:
        """Fill this memory, over as many connections as it takes; not all of it once `moving` is set."""
        headers = {"if-match": tag} | ({} if request is None else {"kvferry-flow": str(request)})
        n_bytes = len(into)
        have = failures = silences = 0
        while have < n_bytes and not moving.is_set():
            before = have
            try:
                with self._answer("GET", path, headers | {"range": f"bytes={have}-"}) as (response, connected):
                    if response.headers.get("content-range") != f"bytes {have}-{n_bytes - 1}/{n_bytes}":
                        raise _Unusable("its answer is another part than was asked for")
                    if response.length != n_bytes - have:
                        raise _Unusable("its answer has another length than was asked for")
                    with self._wanted.while_(moving, connected):
                        for came in self._filling(into[have:], response, connected):
                            have += came
                            moving.moved(came)
            except _MAY_PASS as error:
                # Whoever brought something may drop the connection as often as he likes, but not keep us waiting.
                failures = 0 if have >= before + _LEAST_BYTES else failures + 1
                silences += isinstance(error, TimeoutError)
                if not moving.is_set():
                    self._pause(max(failures, silences), error, moving.wait)

    @contextmanager
    def _answer(self, method: str, path: str, headers: dict[str, str]) -> Iterator[tuple[HTTPResponse, socket]]:
        """What the server says to this, and the socket that it comes over. Raises what a refusal means."""
        connection, connected, response = self._asked(method, self._path + path, self._headers | headers)
        try:
            self._check(response)
            yield response, connected
            # A response not read to its end would be taken for the next one's beginning.
            if response.isclosed():
                self._idle.append(connection)
                return
        except BaseException:
            connection.close()
            raise
        connection.close()

    def _asked(self, method: str, path: str, headers: dict[str, str]) -> _Asked:
        """Ask over a connection that was kept, if there is one. When that turns out to be dead, so are the others: the
        server hung up on all of them, or began anew. That is no failure of its, and another one is asked over."""
        try:
            kept = self._idle.pop()
        except IndexError:
            return self._asked_over(self._new(), method, path, headers)
        try:
            return self._asked_over(kept, method, path, headers)
        except (OSError, HTTPException) as error:
            self._drop_kept()
            if isinstance(error, TimeoutError):  # it may be there, and slow: waiting as long again is another attempt
                raise
        return self._asked_over(self._new(), method, path, headers)

    def _new(self) -> HTTPConnection:
        return self._kind(self._host, self._port, timeout=self._timeout_s)

    def _asked_over(self, connection: HTTPConnection, method: str, path: str, headers: dict[str, str]) -> _Asked:
        try:
            connection.request(method, path, headers=headers)
            connected = connection.sock  # gone from there when the answer is to be the last
            return connection, connected, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _drop_kept(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _whole(self, response: HTTPResponse, most_bytes: int) -> bytes:
        """The body, to its end."""
        pieces, have, steady = list[bytes](), 0, _Steady(self._timeout_s)
        while piece := response.read1(_PIECE_BYTES):
            have += len(piece)
            if have > most_bytes:
                raise _Unusable(f"more than {most_bytes:,} bytes came")
            pieces.append(piece)
            steady.came(len(piece))
        if response.length:
            raise _Unusable(f"the connection broke off with {response.length:,} bytes to come")
        response.read()  # nothing: it notices that this was the end, and the connection can be used again
        return b"".join(pieces)

    def _filling(self, into: memoryview, response: HTTPResponse, connected: socket) -> Iterator[int]:
        """Receive a body of known length where it is to lie; how many bytes came, each time some did."""
        steady = _Steady(self._timeout_s)
        # What came along with the head has been received already; the rest is not copied another time.
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

    def _check(self, response: HTTPResponse) -> None:
        if response.status < 300:
            return
        said = response.read(500).decode("utf-8", "replace").strip()
        text = f"{self.url}: {said or f'{response.status} {response.reason}'}"
        if response.status == 412:
            raise LinkDown(text)
        if response.status == 401:
            raise WrongToken(text)
        if response.status < 500:
            raise InputError(text)
        raise _Unusable(text)

    def _pause(self, failures: int, error: Exception, wait: Callable[[float], object]) -> None:
        """Before the next attempt. Raises LinkDown when there should be none."""
        if failures >= self._attempts:
            why = str(error) or type(error).__name__
            raise LinkDown(f"the cloud at {self.url} gives nothing, after {failures} attempts: {why}") from None
        if failures:
            wait(_FIRST_PAUSE_S * 2 ** (failures - 1))


class CloudGone:
    """A `Fetcher` of a cloud that could not be reached, or gave no index, before anything was fetched from it: what its
    chunks are is not known, and none will be taken."""

    def __init__(self, why: str) -> None:
        self._why = why

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> memoryview:
        """Raises LinkDown."""
        raise LinkDown(self._why)


class _Room:
    """Memory for what comes in, cut from large pieces: new pages cost as much time as receiving into them, unless they
    are large ones. A piece goes when nobody looks at any part of it any more."""

    def __init__(self) -> None:
        self._left = memoryview(b"")
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> memoryview:
        """New memory, used by nobody else."""
        with self._lock:
            if n_bytes > len(self._left):
                self._left = aligned_memory(max(n_bytes, _ROOM_BYTES))
            taken, self._left = self._left[:n_bytes], self._left[n_bytes:]
        return taken


class _Steady:
    """Tells a peer that feeds us drop by drop, as a silent one is told: by TimeoutError."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s, self._came_bytes = time.monotonic(), 0

    def came(self, n_bytes: int) -> None:
        self._came_bytes += n_bytes
        now_s = time.monotonic()
        if now_s > self._since_s + self._timeout_s:
            if self._came_bytes < _LEAST_BYTES:
                raise TimeoutError(f"{self._came_bytes} bytes came in {self._timeout_s:g} s")
            self._since_s, self._came_bytes = now_s, 0


class _Wanted:
    """Hangs up on transfers that nobody wants any more: a thread that waits for bytes cannot be told otherwise."""

    def __init__(self) -> None:
        self._transfers: dict[Moving, socket] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="kvferry cancelling", daemon=True).start()

    @contextmanager
    def while_(self, moving: Moving, connected: socket) -> Iterator[None]:
        with self._lock:
            self._transfers[moving] = connected
        try:
            yield
        finally:
            # From here on the connection may be another transfer's.
            with self._lock:
                del self._transfers[moving]

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            if self._transfers:
                with self._lock:
                    for moving, connected in self._transfers.items():
                        if moving.is_set():
                            with suppress(OSError):
                                connected.shutdown(SHUT_RDWR)
