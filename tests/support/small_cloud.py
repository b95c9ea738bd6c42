"""A small cloud for tests: a store of random chunks, the server in a thread, a fetch that is observed."""

import asyncio
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.cloud.store import StoredModel, StoreHeader, StoreWriter
from kvferry.cloud.store_folder import StoreFolder
from kvferry.codecs.codec import encode
from kvferry.machine.ops import Chunks

MODEL = StoredModel(name="tiny", fingerprint="f1", tokenizer="bytes", layers=4, kv_heads=2, head_dim=32)
ALL = Chunks(0, tuple(range(24)), 1.0)


def write_store(path: Path, seed: int = 7) -> Path:
    """24 chunks of some 9 KB."""
    header = StoreHeader.at_all_levels(MODEL, (256, 256, 256), "huffman")
    rng = np.random.default_rng(seed)
    with StoreWriter(path, header, range(768)) as writer:
        for t in range(3):
            for l in range(MODEL.layers):
                for h in range(MODEL.kv_heads):
                    writer.put(t, l, h, encode("huffman", *rng.standard_normal((2, 256, MODEL.head_dim))))
    return path


class Watch(threading.Event):
    """Counts the bytes of a fetch, calls `then` after each part, and cancels the fetch when set."""

    def __init__(self, then: Callable[["Watch"], None] = lambda watch: None) -> None:
        super().__init__()
        self.bytes_done = 0.0
        self._then = then

    def moved(self, n_bytes: float) -> None:
        self.bytes_done += n_bytes
        self._then(self)


def raw(url: str, request: bytes) -> bytes:
    """Send exactly these bytes, and return all that comes back."""
    with socket.create_connection(address(url), timeout=10) as connection:
        connection.sendall(request)
        said = b""
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                said += data
    return said


@contextmanager
def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, **bounds: float) -> Iterator[str]:
    """The URL of a server in a thread of this process, with other bounds than its own."""
    from kvferry.cloud import connections, server

    for name, value in bounds.items():
        monkeypatch.setattr(connections, name, value)
    servers: list[Any] = []
    listening = server.listen("127.0.0.1", 0, None)

    def run() -> None:
        with asyncio.Runner(loop_factory=connections.new_event_loop) as runner:
            app = server.application(StoreFolder(folder), None, None)
            runner.run(server.answer(app, listening, None, servers.append))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        while not servers:
            time.sleep(0.01)
        servers[0].should_exit = True
        thread.join(10)
        listening.close()
        assert not thread.is_alive()


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def with_number(chunk: bytes, number: float) -> bytes:
    """An fp16 chunk whose first number is another one, with a checksum that fits."""
    header, payload = chunk[:24], np.array([number], "<f2").tobytes() + chunk[26:]
    return header[:20] + struct.pack("<I", zlib.crc32(payload, zlib.crc32(header[:20]))) + payload
