"""A cloud that keeps the client waiting, is away for a moment, or says what no terminal should see."""

import threading
import time
from pathlib import Path

import pytest
from harmful_proxy import Hostile, Proxy
from small_cloud import ALL, Watch

from kvferry.cloud.client import CloudClient
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import Index, Store
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, KvferryError, LinkDown

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.torch


def answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


@pytest.fixture(scope="module")
def index(folder: Path) -> Index:
    with Store(folder / "0.kvs") as store:
        return store.index


HEADS = {
    "endless continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "dripped status": (b"", b"H"),
    "dripped headers": (b"HTTP/1.1 200 OK\r\n", b"a"),
    "endless headers": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "silence": (b"", b""),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_has_a_deadline(kind: str) -> None:
    start_s = time.monotonic()
    with (
        Hostile(*HEADS[kind]) as cloud,
        CloudClient(cloud.url, timeout_s=0.3, attempts=2) as client,
        pytest.raises(LinkDown, match="gives nothing, after 2 attempts"),
    ):
        client.index("0")
    assert time.monotonic() - start_s < 5


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BODIES = {
    "dripped refusal": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 400\r\n\r\n", b"a"),
    "endless refusal": (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", b"a"),
    "dripped length of a chunk": (CHUNKED + b"1;", b"a"),
    "endless trailers": (CHUNKED + b"3\r\nabc\r\n0\r\n", b"a: b\r\n"),
}


@pytest.mark.parametrize("kind", BODIES)
def test_what_follows_the_head_has_a_deadline(kind: str) -> None:
    failed: list[BaseException] = []

    def ask(url: str) -> None:
        try:
            with CloudClient(url, timeout_s=0.2, attempts=2, away_s=0.3) as client:
                client.index("0")
        except KvferryError as error:
            failed.append(error)

    with Hostile(*BODIES[kind]) as cloud:
        asking = threading.Thread(target=ask, args=(cloud.url,), daemon=True)
        asking.start()
        asking.join(5)
    assert failed


def test_a_fetch_is_cancelled_before_the_head_came(index: Index) -> None:
    start_s = time.monotonic()
    with Hostile(b"") as cloud, CloudClient(cloud.url) as client:
        client._opened["0"] = index, "tag"
        watch = Watch()
        threading.Timer(0.2, watch.set).start()
        assert client.fetch(Chunks(0, (0,), 1.0), 0, watch) == b""
    assert time.monotonic() - start_s < 5


def test_a_cloud_that_is_away_for_a_moment(server: ServerProcess, folder: Path) -> None:
    with (
        Proxy("http://127.0.0.1:1", lambda number, so_far, data: data) as proxy,
        CloudClient(proxy.url) as client,
        Store(folder / "0.kvs") as store,
    ):

        def back() -> None:
            proxy.target = server.url

        threading.Timer(0.8, back).start()
        assert client.fetch(ALL, 0, Watch()) == b"".join(store.read(ALL.ids))
        assert 4 < proxy.connections < 20


def test_a_cloud_that_stays_away_is_given_up() -> None:
    start_s = time.monotonic()
    with CloudClient("http://127.0.0.1:1", away_s=0.5) as client, pytest.raises(LinkDown, match="refused"):
        client.index("0")
    assert 0.2 < time.monotonic() - start_s < 5


@pytest.mark.parametrize("status", ["410 Gone", "412 Precondition Failed", "500 Internal Server Error"])
def test_what_will_not_change_is_not_asked_for_again(status: str) -> None:
    with (
        Hostile(answer(status, b"it is so")) as cloud,
        CloudClient(cloud.url, away_s=60) as client,
        pytest.raises(LinkDown, match="it is so"),
    ):
        client.index("0")


@pytest.mark.parametrize("status", ["302 Found", "400 Bad Request", "404 Not Found", "429 Too Many Requests"])
def test_what_it_refuses_of_a_context_that_it_had_ends_the_link_not_the_run(status: str, index: Index) -> None:
    with Hostile(answer(status, b"go away")) as cloud, CloudClient(cloud.url) as client:
        client._opened["0"] = index, "tag"
        with pytest.raises(LinkDown, match=f"gives no more: {status[:3]} go away"):
            client.fetch(Chunks(0, (0,), 1.0), 0, Watch())


NASTY = b"\x1b]0;owned\x07\x1b[2J\r\nkvferry: all is well\x9b31m"


@pytest.mark.parametrize(
    "said",
    [
        answer("404 Not Found", NASTY),
        answer("500 Internal Server Error", NASTY),
        answer("503 \x1b[2J", b""),
        b"HTTP/1.1 \x1b[2J\r\n\r\n",
        NASTY,
    ],
)
def test_what_the_cloud_says_does_not_reach_the_terminal(said: bytes) -> None:
    with (
        Hostile(said) as cloud,
        CloudClient(cloud.url, timeout_s=0.5, attempts=1, away_s=0.1) as client,
        pytest.raises((LinkDown, InputError)) as caught,
    ):
        client.index("0")
    assert str(caught.value).isprintable()
