"""The client of the cloud, over HTTP: returns whole, checked chunks, or raises LinkDown; never half a chunk.

A transfer whose connection breaks continues where it broke off; a damaged chunk is fetched again; a cloud that stays
away is given up after a few seconds, so that the pipeline can compute what is missing.

Built on http.client: a fetch takes a third of the processor time that it takes with httpx, and on a small device that
time is taken from the model. Proxies and passwords in the environment are ignored.
"""

import threading
from collections.abc import Callable
from urllib.parse import quote

from kvferry.cloud.chunk_ids import write_ids
from kvferry.cloud.requests import Requests
from kvferry.cloud.store import DamagedStore, Index, StoredModel
from kvferry.cloud.watched_sockets import Moving
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import LinkDown
from kvferry.system.aligned_memory import aligned_memory
from kvferry.system.checksum import crc32

# Memory for payloads is taken in pieces of this size: several large pages, and a moment of a fast link.
_ROOM_BYTES = 2**24


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
        self.url, self._names, self._attempts = url, names, attempts
        self._requests = Requests(url, token, timeout_s, attempts, away_s)
        self._opened: dict[str, tuple[Index, str]] = {}
        self._lock = threading.Lock()
        self._room = _Room()

    def contexts(self) -> list[str]:
        """The names of the contexts in the cloud. Raises LinkDown, InputError."""
        return self._requests.ask("/contexts")[0].decode().splitlines()

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
        self._requests.connections.open(connections)

    def restart_replay(self) -> None:
        """Restart the trace of the server's link. Raises LinkDown, InputError."""
        self._requests.ask("/replay", "POST")

    def put(self, name: str, content: bytes, index: Index) -> None:
        """Has the server keep a whole store, whose index is known from then on. Raises LinkDown, InputError."""
        _, tag = self._requests.ask(f"/contexts/{quote(name, safe='')}", "PUT", content, most_bytes=0)
        with self._lock:
            self._opened[name] = index, tag

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
        self._requests.download(context + write_ids(ids), tag, payload, request, moving)
        end = 0
        for i, length, checksum in zip(ids, lengths, index.checksums_of(ids, chunks.level), strict=True):
            chunk = payload[end : end + length]
            end += length
            for _ in range(self._attempts):
                if moving.is_set():
                    return payload[:0]
                if crc32(chunk) == checksum:
                    break
                self._requests.download(f"{context}{i}", tag, chunk, request, moving)
            else:
                raise LinkDown(f"{self.url}: chunk {i} of context {name!r} keeps coming in damaged")
        return payload.toreadonly()

    def close(self) -> None:
        self._requests.connections.close()

    def __enter__(self) -> "CloudClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, name: str) -> tuple[Index, str]:
        with self._lock:
            if name not in self._opened:
                table, tag = self._requests.ask(f"/contexts/{quote(name, safe='')}/index")
                try:
                    self._opened[name] = Index.from_bytes(table), tag
                except DamagedStore as error:
                    raise DamagedStore(f"{self.url}: context {name!r}: {error}") from None
            return self._opened[name]


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
