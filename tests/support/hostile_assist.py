"""A cloud of P/D-Device that speaks the language of channels over HTTP, and says in it what it likes."""

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest
from tiny import LIVE_ASSISTED, changed

from kvferry.backends.live.wire.event import END, MESSAGE, OPEN, PART, as_sent, read, written

# Called with what it may say, and the device's request; it says nothing more when it returns.
Way = Callable[["Voice", dict[str, Any]], None]
KEY = "key1"
OUTPUT = 8
HOSTILE = changed(
    LIVE_ASSISTED,
    name="hostile",
    link={"rate": "20 Mbit/s"},
    workload={"prompt": 128, "beginning": 16, "question": 32, "output": OUTPUT},
)


@pytest.fixture(autouse=True, scope="module")
def one_model() -> Iterator[None]:
    """Of the tests of a module that imports it: they warm up one model, once."""
    from kvferry.backends.live.assist import parts
    from kvferry.scenarios.loader import load_scenario

    found = parts.warm_model(load_scenario(HOSTILE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "warm_model", lambda scenario: found)
        yield


class Voice:
    """What a device hears. Raises OSError once it has gone."""

    def __init__(self, write: Callable[[bytes], Any], over: Event) -> None:
        self._write, self._over = write, over

    def say(self, kind: str, value: Any = None) -> None:
        if self._over.is_set():
            raise OSError
        self._write(as_sent(kind, written(value, 60.0)))

    def answer(self, asked: dict[str, Any], **changes: Any) -> None:
        good = {"request": asked["request"], "tokens": asked["tokens"], "bytes": 100.0, "token": (65, "A")}
        self.say(MESSAGE, good | {"mask": None, "tokenizer": "bytes", "tpot_s": 0.01} | changes)

    def part(self, token: Any = (66, "B")) -> None:
        self.say(PART, token)

    def end(self) -> None:
        self.say(END)

    def pause(self, seconds: float) -> None:
        self._over.wait(seconds)


class HostileCloud:
    """Use it in a `with` block. ``url``: where it is. `refuses`: what it says instead of taking what a device says."""

    def __init__(self, way: Way, refuses: int | None = None) -> None:
        self._over, asked = Event(), SimpleQueue[dict[str, Any]]()
        over = self._over

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write(as_sent(OPEN, json.dumps({"key": KEY}).encode()))
                try:
                    way(Voice(self.wfile.write, over), asked.get(timeout=20))
                    while not over.wait(1.0):
                        self.wfile.write(b": here\n\n")
                except (OSError, Empty):
                    pass
                self.close_connection = True

            def do_POST(self) -> None:
                kind = self.path.partition("?")[0].rpartition("/")[2]
                said = read(kind, self.rfile.read(int(self.headers["content-length"])))
                if isinstance(said.value, dict):
                    asked.put(said.value)
                self.send_response(refuses or 204)
                if refuses:
                    self.send_header("content-length", "7")
                self.end_headers()
                if refuses:
                    self.wfile.write(b"go away")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HostileCloud":
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


def as_fast_as_it_can(say: Callable[[], None], seconds: float = 60.0) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        say()
