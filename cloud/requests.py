"""Requests to the cloud over HTTP, each repeated as long as patience lasts; a refusal raises what it means."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvferry.cloud.http_answer import MAY_PASS, HttpAnswer, Unusable
from kvferry.cloud.kept_connections import KeptConnections
from kvferry.cloud.patience import Patience, one_line
from kvferry.cloud.store import MOST_TABLE_BYTES
from kvferry.cloud.watched_sockets import Moving
from kvferry.specs.errors import InputError, LinkDown


class WrongToken(InputError):
    """The server needs a token, or another one."""


# The trace has ended, the store was replaced, the store is damaged: asking again would bring the same.
_FINAL = (410, 412, 500)


class Requests:
    """Asks one server, over kept connections. Gives up when it was silent for `timeout_s`, `attempts` times, or refused
    for `away_s` in a row. Raises LinkDown then, and InputError for a token that cannot be one."""

    def __init__(self, url: str, token: str | None, timeout_s: float, attempts: int, away_s: float) -> None:
        self.url, self._attempts, self._away_s = url, attempts, away_s
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InputError("a token has letters, digits and signs only")
        self.connections = KeptConnections(url, timeout_s)
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {token}"} if token else {})
        # Whether the server has answered anything but a refusal: a token that it knew then is no mistake of the user's.
        self._let_in = False

    def ask(
        self, path: str, method: str = "GET", body: bytes = b"", most_bytes: int = MOST_TABLE_BYTES
    ) -> tuple[bytes, str]:
        """The whole body of a short answer, and its ETag."""
        patience = Patience(self.url, self._attempts, self._away_s)
        while True:
            try:
                with self._answer(method, path, {}, None, body) as answer:
                    return answer.whole(most_bytes), answer.response.headers.get("etag", "*")
            except MAY_PASS as error:
                time.sleep(patience.pause_s(error))

    def download(self, path: str, tag: str, into: memoryview, request: int | None, moving: Moving) -> None:
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
                    with self.connections.watched.while_(answer.connected, moving):
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
        with self.connections.answer(method, path, self._headers | headers, moving, body) as answer:
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
