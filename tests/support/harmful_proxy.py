"""What stands between a client and its cloud, and does harm."""

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Self


class Listening(ABC):
    """Serves each connection in a thread of its own, until it is left; ``connections`` counts them."""

    def __init__(self) -> None:
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        # Closed alone it would go on listening, and once its thread is interrupted, on whatever has its number by then.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._carry, args=(near, self.connections), daemon=True).start()

    @abstractmethod
    def _carry(self, near: socket.socket, number: int) -> None: ...


class Hostile(Listening):
    """A server that answers every connection with the same bytes, again and again, at intervals."""

    def __init__(self, begin: bytes, again: bytes = b"", every_s: float = 0.02) -> None:
        self._begin, self._again, self._every_s = begin, again, every_s
        super().__init__()

    def _carry(self, near: socket.socket, number: int) -> None:
        with near, suppress(OSError):
            near.recv(4096)
            near.sendall(self._begin)
            while not self._closed.wait(self._every_s):
                near.sendall(self._again)


class Proxy(Listening):
    """A small TCP proxy in front of a server, on which things go wrong: each connection's bytes to the client go
    through `harm(connection number, bytes so far, bytes)`, which returns what arrives of them; None: cut it off."""

    def __init__(self, url: str, harm: Callable[[int, int, bytes], bytes | None]) -> None:
        self.target, self._harm = url, harm
        super().__init__()

    def _carry(self, near: socket.socket, number: int) -> None:
        host, port = self.target.removeprefix("http://").split(":")
        with near, suppress(OSError), socket.create_connection((host, int(port)), timeout=30) as far:
            threading.Thread(target=self._ask, args=(near, far), daemon=True).start()
            so_far = 0
            while data := far.recv(4096):
                arrives = self._harm(number, so_far, data)
                so_far += len(data)
                if arrives is None:
                    break
                near.sendall(arrives)
            # Closing alone would do nothing: another thread waits for more from there.
            near.shutdown(socket.SHUT_RDWR)

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(4096):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
