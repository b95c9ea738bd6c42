"""The client of the cloud, over HTTP: returns whole, checked chunks, or raises LinkDown; never half a chunk.

A transfer whose connection breaks continues where it broke off; a damaged chunk is fetched again; a cloud that stays
away is given up after a few seconds, so that the pipeline can compute what is missing.

Built on http.client: a fetch takes a third of the processor time that it takes with httpx, and on a small device that
time is taken from the model. Proxies and passwords in the environment are ignored.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from kvferry.cloud.chunk_ids import write_ids
from kvferry.cloud.http_answer import MAY_PASS, HttpAnswer, Unusable
from kvferry.cloud.kept_connections import KeptConnections
from kvferry.cloud.patience import Patience, one_line
from kvferry.cloud.store import MOST_TABLE_BYTES, DamagedStore, Index, StoredModel
from kvferry.cloud.watched_sockets import Moving
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, LinkDown
from kvferry.system.aligned_memory import aligned_memory
from kvferry.system.checksum import crc32

# Memory for payloads is taken in pieces of this size: several large pages, and a moment of a fast link.
_ROOM_BYTES = 2**24


class WrongToken(InputError):
    """The server needs a token, or another one."""


# The trace has ended, the store was replaced, the store is damaged: asking again would bring the same.
_FINAL = (410, 412, 500)


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
        self._attempts, self._away_s = attempts, away_s
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InputError("a token has letters, digits and signs only")
        self._connections = KeptConnections(url, timeout_s)
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._opened: dict[str, tuple[Index, str]] = {}
        # Whether the server has answered anything but a refusal: a token that it knew then is no mistake of the user's.
        self._let_in = False
        self._lock = threading.Lock()
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
        self._connections.open(connections)

    def restart_replay(self) -> None:
        """Restart the trace of the server's link. Raises LinkDown, InputError."""
        self._get("/replay", "POST")

    def put(self, name: str, content: bytes, index: Index) -> None:
        """Has the server keep a whole store, whose index is known from then on. Raises LinkDown, InputError."""
        patience, path = Patience(self.url, self._attempts, self._away_s), f"/contexts/{quote(name, safe='')}"
        while True:
            try:
                with self._answer("PUT", path, {}, None, content) as answer:
                    answer.whole(0)
                    tag = answer.response.headers.get("etag", "*")
            except MAY_PASS as error:
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
        self._connections.close()

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
                with self._answer(method, path, {}, None) as answer:
                    return answer.whole(MOST_TABLE_BYTES), answer.response.headers.get("etag", "*")
            except MAY_PASS as error:
                time.sleep(patience.pause_s(error))

    def _download(self, path: str, tag: str, into: memoryview, request: int | None, moving: Moving) -> None:
        """Fill this memory, over as many connections as it takes. Stops early once `moving` is set."""
        headers = {"if-match": tag} | ({} if request is None else {"kvferry-flow": str(request)})
        n_bytes, have = len(into), 0
        patience = Patience(self.url, self._attempts, self._away_s)
        while have < n_bytes and not moving.is_set():
            before = have
            try:
                with self._answer("GET", path, headers | {"range": f"bytes={have}-"}, moving) as answer:
                    response = answer.response
                    if response.headers.get("content-range") != f"bytes {have}-{n_bytes - 1}/{n_bytes}":
                        raise Unusable("its answer is another part than was asked for")
                    if response.length != n_bytes - have:
                        raise Unusable("its answer has another length than was asked for")
                    with self._connections.watched.while_(answer.connected, moving):
                        for came in answer.filling(into[have:]):
                            have += came
                            moving.moved(came)
            except MAY_PASS as error:
                patience.came(have - before)
                if not moving.is_set():
                    moving.wait(patience.pause_s(error))

    @contextmanager
    def _answer(
        self, method: str, path: str, headers: dict[str, str], moving: Moving | None, body: bytes = b""
    ) -> Iterator[HttpAnswer]:
        """The server's answer to this request. A refusal raises what it means."""
        with self._connections.answer(method, path, self._headers | headers, moving, body) as answer:
            self._check(answer, known="if-match" in headers)
            yield answer

    def _check(self, answer: HttpAnswer, known: bool) -> None:
        """Raise what a refusal means, with its words. `known`: the server has had what is asked for."""
        response = answer.response
        if response.status < 300:
            self._let_in = True
            return
        words = one_line(answer.words()) or one_line(f"{response.status} {response.reason}")
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
        raise Unusable(text)


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
