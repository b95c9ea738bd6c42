"""An answer of a server over HTTP, whose head has been read, and its body, which may come slowly or not at all."""

import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from socket import socket

from kvferry.cloud.patience import Steady
from kvferry.cloud.watched_sockets import WatchedSockets

# Most bytes of one read from a body of unknown length, or of what arrived together with the head.
PIECE_BYTES = 2**18


class Unusable(Exception):
    """An answer that cannot be used; the next attempt may bring a better one."""


# What the next attempt may not meet.
MAY_PASS = (OSError, HTTPException, Unusable)


class HttpAnswer:
    """``response``: its head; its body arrives on the socket ``connected``. A read that has not ended within
    `timeout_s` is the last."""

    def __init__(self, response: HTTPResponse, connected: socket, watched: WatchedSockets, timeout_s: float) -> None:
        self.response, self.connected = response, connected
        self._watched, self._timeout_s = watched, timeout_s

    def whole(self, most_bytes: int) -> bytes:
        """The whole body. Reads end in time, also of a chunk's length or of trailers that are sent drop by drop."""
        pieces, have, steady = list[bytes](), 0, Steady(self._timeout_s)

        def read() -> bytes:
            with self._watched.while_(self.connected, None, time.monotonic() + self._timeout_s):
                return self.response.read1(PIECE_BYTES)

        while piece := read():
            have += len(piece)
            if have > most_bytes:
                raise Unusable(f"more than {most_bytes:,} bytes came")
            pieces.append(piece)
            steady.came(len(piece))
        if self.response.length:
            raise Unusable(f"the connection broke off with {self.response.length:,} bytes to come")
        self.response.read()  # returns nothing, but notices the end, so that the connection can be used again
        return b"".join(pieces)

    def filling(self, into: memoryview) -> Iterator[int]:
        """Receive a body of known length into this memory; yields how many bytes came, each time some did."""
        steady = Steady(self._timeout_s)
        # What came along with the head is in http.client's buffer; the rest is received without another copy.
        first = self.response.read1(PIECE_BYTES)
        have = came = len(first)
        into[:have] = first
        while came:
            yield came
            if have == len(into):
                self.response.close()  # and the connection can be used again
                return
            steady.came(came)
            came = self.connected.recv_into(into[have:])
            have += came
        raise Unusable(f"the connection broke off with {len(into) - have:,} bytes to come")

    def words(self) -> str:
        """Returns what a refusal says, as far as it comes."""
        said = b""
        with suppress(*MAY_PASS), self._watched.while_(self.connected, None, time.monotonic() + self._timeout_s):
            said = self.response.read(500)
        return said.decode("utf-8", "replace")
