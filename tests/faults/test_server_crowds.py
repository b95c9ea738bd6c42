"""Clients that are too many, too slow or from elsewhere: the server goes on serving the others, in bounded memory."""

import fcntl
import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from small_cloud import ALL, MODEL, Watch, address, answering, raw, write_store

from kvferry.cloud.client import CloudClient
from kvferry.cloud.connections import new_event_loop
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import Store, StoreHeader, StoreWriter

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("stores") / "0.kvs").parent


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    with Store(folder / "0.kvs") as store:
        return b"".join(store.read(ALL.ids))


@contextmanager
def open_files(wanted: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files; the limit here is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- too many --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cold_start")
def test_idle_connections_beyond_what_select_can_hold(folder: Path, whole: bytes) -> None:
    with open_files(2048), ServerProcess(folder) as server, ExitStack() as idle, CloudClient(server.url) as client:
        for _ in range(1150):
            idle.enter_context(socket.create_connection(address(server.url), timeout=10))
        assert client.fetch(ALL, 0, Watch()) == whole
        assert server._process.poll() is None


def test_the_loop_takes_descriptors_that_select_refuses() -> None:
    near, far = socket.socketpair()
    with open_files(2048), near, far, closing(new_event_loop()) as loop:
        descriptor = fcntl.fcntl(near, fcntl.F_DUPFD, 1100)
        try:
            loop.add_reader(descriptor, loop.stop)
            loop.call_later(10, pytest.fail, "what came was not noticed")
            far.sendall(b"a")
            loop.run_forever()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def test_the_longest_idle_makes_room(folder: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(folder, monkeypatch, MOST_CONNECTIONS=8) as url, ExitStack() as idle:
        crowd = [idle.enter_context(socket.create_connection(address(url), timeout=10)) for _ in range(8)]
        with CloudClient(url) as client:
            assert client.fetch(ALL, 0, Watch()) == whole
        with suppress(ConnectionError):
            assert crowd[0].recv(1) == b""
        crowd[-1].sendall(b"GET /contexts HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert crowd[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_connections_in_use_are_kept_and_others_refused(
    folder: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(folder, monkeypatch, MOST_CONNECTIONS=3) as url, ExitStack() as busy:
        ids = ",".join(["0-23"] * 500)  # 100 MB: more than fits into the buffers on the way
        crowd = [busy.enter_context(socket.create_connection(address(url), timeout=10)) for _ in range(3)]
        for connection in crowd:
            connection.sendall(f"GET /contexts/0/chunks?ids={ids} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert raw(url, b"").startswith(b"HTTP/1.1 503")
        busy.close()
        with CloudClient(url) as client:
            assert client.fetch(ALL, 0, Watch()) == whole


@pytest.mark.long
def test_forty_thousand_requests_over_one_connection(folder: Path) -> None:
    with ServerProcess(folder) as server:
        connection = HTTPConnection(*address(server.url), timeout=10)
        for n in range(40_000):
            if n == 1000:
                before_bytes = resident_bytes(server)
            connection.request("GET", f"/contexts/0/chunks?ids={n % 24}")
            assert connection.getresponse().read().startswith(b"KVFC")
        connection.close()
        assert resident_bytes(server) < before_bytes + 8e6


# --- too slow --------------------------------------------------------------------------------------------------------


def deaf(url: str, path: str, buffer_bytes: int = 4096) -> socket.socket:
    """A client that asks for this, and reads nothing by itself."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    connection.settimeout(10)
    connection.connect(address(url))
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    return connection


def read_to_end(connection: socket.socket) -> None:
    while connection.recv(2**20):
        pass


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process_id}/status")
    if not status.exists():
        pytest.skip("reads a process's memory from /proc")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def large_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store whose index alone, of 5 million token ids, takes 20 MB."""
    folder = tmp_path_factory.mktemp("large")
    tokens = 5_000_000
    header = StoreHeader.at_all_levels(MODEL.model_copy(update={"layers": 1, "kv_heads": 1}), [tokens], "fp16")
    with StoreWriter(folder / "0.kvs", header, range(tokens)) as writer:
        writer.put(0, 0, 0, b"x")
    return folder


@pytest.mark.parametrize("path", ["/contexts/0/index", "/contexts/0/file"])
def test_clients_that_read_nothing_share_little_memory(large_index: Path, path: str) -> None:
    with ServerProcess(large_index) as server, ExitStack() as deaf_ones:
        with CloudClient(server.url) as client:
            client.index("0")
        before_bytes = resident_bytes(server)
        for _ in range(10):
            deaf_ones.enter_context(deaf(server.url, path))
        with CloudClient(server.url) as client:  # by the time that this is answered, all of those were begun
            assert client.contexts() == ["0"]
        assert resident_bytes(server) < before_bytes + 60e6


@pytest.mark.parametrize("begun", [b"", b"GET /con", b"GET /contexts HTTP/1.1\r\nhost: localhost\r\na: "])
def test_a_request_that_never_ends_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    with (
        answering(folder, monkeypatch, HEAD_S=0.1) as url,
        socket.create_connection(address(url), timeout=5) as connection,
    ):
        connection.sendall(begun)
        with suppress(ConnectionError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("path", ["/contexts/0/index", "/contexts/0/file", "/contexts/0/chunks"])
def test_a_client_that_reads_nothing_is_cut_off(
    large_index: Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "chunks" in path:
        large_index = tmp_path
        write_store(tmp_path / "0.kvs")
        path += "?ids=" + ",".join(["0-23"] * 500)
    with answering(large_index, monkeypatch, STALL_S=0.2) as url, deaf(url, path) as connection:
        cut_off = select.poll()
        cut_off.register(connection, 0)  # errors are told without being asked for
        assert cut_off.poll(20_000), "the server still waits"
        with pytest.raises(ConnectionResetError):
            read_to_end(connection)


@pytest.mark.long
def test_a_client_that_reads_slowly_gets_everything(
    folder: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At some 5 MB/s, of which the server's socket takes notice less often than every `STALL_S`."""
    path = "/contexts/0/chunks?ids=" + ",".join(["0-23"] * 30)
    with answering(folder, monkeypatch, STALL_S=0.1) as url, deaf(url, path, buffer_bytes=65_536) as connection:
        came = 0
        while came < 30 * len(whole):
            data = connection.recv(65_536)
            assert data, f"cut off after {came} bytes"
            came += len(data)
            time.sleep(0.01)


# --- from elsewhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "line",
    [
        "origin: https://evil.example",
        "origin: null",
        "origin: http://127.0.0.1.evil.example",
        "origin: http://127.0.0.1:1",
        "sec-fetch-site: cross-site",
        "sec-fetch-site: same-site",
        "origin: http://127.0.0.1\r\nsec-fetch-site: cross-site",
    ],
)
def test_pages_of_other_sites_are_refused(folder: Path, server: str, method: str, line: str) -> None:
    path = "/replay" if method == "POST" else "/contexts"
    request = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{line}\r\n\r\n"
    said = raw(server, request.encode())
    assert said.startswith(b"HTTP/1.1 403")
    assert said.endswith(b"this server answers no pages of other sites")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8100", "127.0.0.1.evil.example", "localhost.evil.example", "", "0.0.0.0"]
)
def test_a_name_that_was_made_to_point_here_is_refused(server: str, host: str) -> None:
    request = f"POST /replay HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\norigin: http://{host}\r\n\r\n"
    assert raw(server, request.encode()).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("line", ["", "sec-fetch-site: none\r\n", "origin: http://localhost:8100\r\n"])
def test_the_users_own_requests_are_answered(server: str, line: str) -> None:
    request = f"POST /replay HTTP/1.1\r\nhost: localhost:8100\r\nconnection: close\r\n{line}\r\n"
    assert raw(server, request.encode()).startswith(b"HTTP/1.1 204")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    with ServerProcess(folder) as server:
        yield server.url
