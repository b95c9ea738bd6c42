"""``serve_cloud`` in a thread of this process, and devices that speak to it as strangers would."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from types import MappingProxyType
from typing import Any

import pytest

from kvferry.api.serving import serve_cloud
from kvferry.backends.live import served_world
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.wire.event import read, written
from kvferry.specs.scenario import Scenario

# A request that the byte models can serve.
TEXT = ("Once. ", "A fact. Another one. " * 4, " Which?")
REQUEST: dict[str, Any] = {
    "request": 0,
    "prompt": sum(map(len, TEXT)),
    "text": TEXT,
    "answer": 4,
    "scene": 0,
    "tokens": 3,
    "ratio": 0.5,
    "pace_s": None,
    "drafts": False,
    "accepted": 0.5,
    "refiner": "weighted-sentences",
}


class ServedCloud:
    """A cloud under test. `said`: what it reported about its devices."""

    def __init__(self, url: str, said: list[str]) -> None:
        self.url, self.said = url, said

    def device(self, name: str, **headers: str) -> "Stranger":
        return Stranger(self.url, name, headers)

    def answers(self, name: str, **headers: str) -> bool:
        """Whether a device that asks properly gets its whole answer."""
        with self.device(name, **headers) as device:
            device.say(REQUEST)
            kinds = [kind for kind, _ in device.until("end")]
            return kinds == ["message", "part", "part", "end"]


class Stranger:
    """One channel, spoken by hand. Raises OSError where the cloud ends it."""

    def __init__(self, url: str, name: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._address, self._numbers = url.removeprefix("http://"), 0
        self._stream = HTTPConnection(self._address, timeout=30.0)
        self._stream.request("GET", f"/channels/cloud/{name}", headers=headers)
        # The connection forgets it when the answer is to be the last.
        self.socket: socket.socket = self._stream.sock
        self.response: HTTPResponse = self._stream.getresponse()
        self.key = ""
        if self.response.status == 200:
            self.key = json.loads(self._event()[1])["key"]

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.response.close()
        self._stream.close()

    def say(self, value: Any, kind: str = "message") -> tuple[int, str]:
        return self.post(written(value, 1.0), kind)

    def post(self, data: bytes, kind: str = "message", number: int | None = None) -> tuple[int, str]:
        """Send it as it is; returns the answer's status and words."""
        self._numbers += 1
        with closing(HTTPConnection(self._address, timeout=30)) as connection:
            n = self._numbers if number is None else number
            connection.request("POST", f"/said/{self.key}/{kind}?n={n}", data)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def hear(self) -> tuple[str, Any]:
        """The next event's kind and value. Raises OSError where there is none."""
        kind, data = self._event()
        return kind, read(kind, data).value

    def until(self, last: str) -> Iterator[tuple[str, Any]]:
        """Events as they come, the first one of this kind included."""
        kind = ""
        while kind != last:
            kind, value = self.hear()
            yield kind, value

    def _event(self) -> tuple[str, bytes]:
        kind = ""
        while line := self.response.readline():
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                return kind, line[6:].strip()
        raise ConnectionError("the cloud has ended this channel")


@contextmanager
def serving(scenario: Scenario, **more: Any) -> Iterator[ServedCloud]:
    """Serves the scenario's cloud while the block lasts."""
    envs: list[WallClockEnvironment] = []
    said: list[str] = []
    url: list[str] = []
    ready = threading.Event()

    class Environment(WallClockEnvironment):
        def __init__(self) -> None:
            super().__init__()
            envs.append(self)

    def told(where: str) -> None:
        url.append(where)
        ready.set()

    def serve() -> None:
        with suppress(KeyboardInterrupt):
            serve_cloud(scenario, tell=told, say=said.append, **more)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served_world, "WallClockEnvironment", Environment)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert ready.wait(120)
    try:
        yield ServedCloud(url[0], said)
    finally:
        envs[0].tell(interrupt, None)
        thread.join(60)
    assert not thread.is_alive()
