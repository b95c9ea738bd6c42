"""What can go wrong between a device and its cloud: never half a chunk, never a hang, always a word."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harmful_proxy import Listening, Proxy
from small_cloud import ALL, MODEL, Watch, answering, raw, write_store

from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.cloud.client import CloudClient
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import DamagedStore, Store
from kvferry.codecs.codec import KeysValues, decode, encode, split
from kvferry.codecs.pool import CodecPool
from kvferry.machine.ops import Chunks, Decompress, Op
from kvferry.specs.errors import InputError, LinkDown
from kvferry.specs.link import LinkSpec

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.torch

# Patience of the clients here: long enough for a busy machine, short enough for a test.
PATIENCE_S = 1.0


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    """All chunks, as they should arrive."""
    with Store(folder / "0.kvs") as store:
        return b"".join(store.read(ALL.ids))


# --- the way ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every_bytes", [5_000, 60_000])
def test_a_connection_cut_again_and_again(server: ServerProcess, whole: bytes, every_bytes: int) -> None:
    def cut(number: int, so_far: int, data: bytes) -> bytes | None:
        return data if so_far + len(data) < every_bytes else None

    with Proxy(server.url, cut) as proxy, CloudClient(proxy.url) as client:
        watch = Watch()
        assert client.fetch(ALL, 0, watch) == whole
        assert watch.bytes_done == len(whole)  # taken up where it broke off: no byte came twice
        assert proxy.connections > len(whole) // every_bytes


def test_a_server_killed_on_the_way_and_gone(folder: Path) -> None:
    with ServerProcess(folder, LinkSpec(rate_bytes_per_s=200e3)) as server, CloudClient(server.url) as client:
        watch = Watch(lambda watch: os.kill(server.process_id, signal.SIGKILL) if watch.bytes_done > 30e3 else None)
        with pytest.raises(LinkDown, match="gives nothing, after [0-9]+ attempts: .*refused"):
            client.fetch(ALL, 0, watch)
        assert 30e3 < watch.bytes_done < 200e3


def test_a_server_killed_on_the_way_and_back_again(folder: Path, whole: bytes) -> None:
    with (
        ServerProcess(folder, LinkSpec(rate_bytes_per_s=200e3)) as first,
        ServerProcess(folder) as second,
        Proxy(first.url, lambda number, so_far, data: data) as proxy,
        CloudClient(proxy.url) as client,
    ):

        def kill(watch: Watch) -> None:
            if watch.bytes_done > 30e3 and proxy.target == first.url:
                proxy.target = second.url
                os.kill(first.process_id, signal.SIGKILL)

        assert client.fetch(ALL, 0, Watch(kill)) == whole


def test_a_server_begun_anew_behind_connections_that_were_kept(folder: Path, whole: bytes) -> None:
    with (
        ServerProcess(folder) as first,
        ServerProcess(folder) as second,
        Proxy(first.url, lambda number, so_far, data: data) as proxy,
        CloudClient(proxy.url) as client,
    ):
        client.index("0")
        all_under_way = threading.Barrier(8)

        class Meeting(Watch):
            def moved(self, n_bytes: float) -> None:
                if not self.bytes_done:
                    all_under_way.wait(30)
                super().moved(n_bytes)

        threads = [threading.Thread(target=client.fetch, args=(ALL, n, Meeting())) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(client._requests.connections.idle) == 8
        proxy.target = second.url
        os.kill(first.process_id, signal.SIGKILL)
        time.sleep(0.3)
        # None of the eight says anything any more, which is no failure of the server's that is there now.
        assert client.fetch(ALL, 0, Watch()) == whole
        assert len(client._requests.connections.idle) == 1


def test_a_damaged_chunk_is_asked_for_again(server: ServerProcess, whole: bytes) -> None:
    harmed: list[int] = []

    def flip(number: int, so_far: int, data: bytes) -> bytes:
        if so_far > 100_000 and not harmed:
            harmed.append(so_far)
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    with Proxy(server.url, flip) as proxy, CloudClient(proxy.url) as client:
        client.index("0")
        watch = Watch()
        assert client.fetch(ALL, 0, watch) == whole
        assert harmed
        assert len(whole) < watch.bytes_done < len(whole) + 12_000  # that chunk once more, and no other


def test_a_chunk_that_stays_damaged_is_no_chunk(folder: Path, tmp_path: Path) -> None:
    data = bytearray((folder / "0.kvs").read_bytes())
    data[16 + 500] ^= 1
    (tmp_path / "0.kvs").write_bytes(data)
    with ServerProcess(tmp_path) as server, CloudClient(server.url) as client:
        with pytest.raises(LinkDown, match="chunk 0 of context '0' keeps coming in damaged"):
            client.fetch(ALL, 0, Watch())
        assert client.fetch(Chunks(0, (1, 2), 1.0), 0, Watch())


def test_a_server_that_falls_silent(server: ServerProcess) -> None:
    def stall(number: int, so_far: int, data: bytes) -> bytes:
        return data if so_far < 20_000 else b""

    # Each connection brings 20 KB and falls silent: progress, but no end to it.
    with Proxy(server.url, stall) as proxy, CloudClient(proxy.url, timeout_s=PATIENCE_S, attempts=2) as client:
        watch = Watch()
        with pytest.raises(LinkDown, match="gives nothing, after 2 attempts: timed out"):
            client.fetch(ALL, 0, watch)
        assert watch.bytes_done > 20_000


def test_a_server_that_feeds_drop_by_drop(server: ServerProcess) -> None:
    with (
        _Dripping(server.url) as proxy,
        CloudClient(proxy.url, timeout_s=PATIENCE_S, attempts=2) as client,
        pytest.raises(LinkDown, match=r"gives nothing, after 2 attempts: [0-9]+ bytes came in 1 s"),
    ):
        client.contexts()


class _Dripping(Proxy):
    """One byte every 50 ms."""

    def __init__(self, url: str) -> None:
        super().__init__(url, lambda number, so_far, data: data)

    def _carry(self, near: socket.socket, number: int) -> None:
        with near, suppress(OSError):
            near.recv(4096)
            near.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not self._closed.wait(0.05):
                near.sendall(b"x")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 500, b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_something_else_answers(answer: bytes) -> None:
    with (
        _Answering(answer) as cloud,
        CloudClient(cloud.url, timeout_s=PATIENCE_S, attempts=2, away_s=0.1) as client,
        pytest.raises((LinkDown, DamagedStore)),
    ):
        client.index("0")


class _Answering(Listening):
    """Says the same to everything."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        super().__init__()

    def _carry(self, near: socket.socket, number: int) -> None:
        with near, suppress(OSError):
            near.recv(4096)
            near.sendall(self._answer)


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with (
        CloudClient(url, away_s=0.1) as client,
        pytest.raises(LinkDown, match=f"cloud at {url} gives nothing, after 2 attempts"),
    ):
        client.contexts()


def test_a_trace_that_ends(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("# kvferry-trace 1\n# kind: bandwidth\nstart_s,bytes_per_s\n0,100000\n0.3,end\n")
    link = LinkSpec(trace=str(trace), on_end="end")
    with ServerProcess(folder, link) as server, CloudClient(server.url) as client:
        with pytest.raises(LinkDown, match="the link's trace has ended, at 0.3 s"):
            client.fetch(ALL, 0, Watch())
        # Played from the beginning, it carries the first chunks again.
        client.restart_replay()
        assert client.fetch(Chunks(0, (0,), 1.0), 0, Watch())


# --- calling off -----------------------------------------------------------------------------------------------------


def test_a_fetch_called_off_ends_at_once_and_makes_room(folder: Path) -> None:
    with ServerProcess(folder, LinkSpec(rate_bytes_per_s=100e3)) as server, CloudClient(server.url) as client:
        watch = Watch(lambda watch: watch.set() if watch.bytes_done > 5e3 else None)
        start_s = time.monotonic()
        assert client.fetch(ALL, 0, watch) == b""
        assert 5e3 < watch.bytes_done < 100e3
        # The rest, two seconds of it, is not sent: another chunk of the same flow comes through before that.
        assert client.fetch(Chunks(0, (0,), 1.0), 0, Watch())
        assert time.monotonic() - start_s < 1.5


def test_a_fetch_is_called_off_while_nothing_comes(folder: Path) -> None:
    link = LinkSpec(rate_bytes_per_s=1e6, rtt_s=20.0)
    with ServerProcess(folder, link) as server, CloudClient(server.url, timeout_s=30) as client:
        client.index("0")
        watch = Watch()
        threading.Timer(0.3, watch.set).start()
        start_s = time.monotonic()
        assert client.fetch(ALL, 0, watch) == b""
        assert time.monotonic() - start_s < 5
        assert watch.bytes_done == 0


# --- the store -------------------------------------------------------------------------------------------------------


def test_the_wrong_store_for_the_model(server: ServerProcess) -> None:
    with CloudClient(server.url) as client:
        client.index("0", MODEL)
        with pytest.raises(InputError, match="made for model tiny, not for large: fingerprint f1 instead of f2"):
            client.index("0", MODEL.model_copy(update={"name": "large", "fingerprint": "f2"}))


def test_half_a_store_is_not_served(folder: Path, tmp_path: Path, whole: bytes) -> None:
    data = (folder / "0.kvs").read_bytes()
    (tmp_path / "half.kvs").write_bytes(data[: len(data) // 2])
    (tmp_path / "0.kvs").write_bytes(data)
    with ServerProcess(tmp_path) as server, CloudClient(server.url) as client:
        with pytest.raises(LinkDown, match="this context's store is damaged"):
            client.index("half")
        assert client.fetch(ALL, 0, Watch()) == whole


def test_a_store_replaced_while_it_is_loaded(folder: Path, tmp_path: Path) -> None:
    write_store(tmp_path / "0.kvs")
    with ServerProcess(tmp_path) as server, CloudClient(server.url) as client:
        client.index("0")
        time.sleep(0.01)
        write_store(tmp_path / "0.kvs", seed=8)
        with pytest.raises(LinkDown, match="stored again"):
            client.fetch(ALL, 0, Watch())


def test_a_store_cut_short_while_it_is_served(tmp_path: Path) -> None:
    path = write_store(tmp_path / "0.kvs")
    with ServerProcess(tmp_path) as server, CloudClient(server.url, away_s=0.1) as client:
        client.index("0")
        os.truncate(path, 50_000)
        with pytest.raises(LinkDown):
            client.fetch(ALL, 0, Watch())


def test_chunks_and_contexts_that_are_not_there(server: ServerProcess) -> None:
    with CloudClient(server.url) as client:
        with pytest.raises(InputError, match="has chunks 0 to 23"):
            client.fetch(Chunks(0, (24,), 1.0), 0, Watch())
        with pytest.raises(InputError, match="no context '1' here; there are: 0"):
            client.fetch(Chunks(1, (0,), 1.0), 0, Watch())
        with pytest.raises(InputError, match="levels 0 to 0"):
            client.fetch(Chunks(0, (0,), 1.0, level=3), 0, Watch())


# --- who should not get in -------------------------------------------------------------------------------------------


PATHS = [
    "/contexts/../secret/file",
    "/contexts/..%2fsecret/file",
    "/contexts/%2e%2e%2fsecret/file",
    "/contexts/%2e%2e/secret/file",
    "/contexts/..%5csecret/file",
    "/contexts/%252e%252e%252fsecret/file",
    "/contexts//etc/passwd/file",
    "/contexts/%2fetc%2fpasswd/file",
    "/contexts/0.kvs%2f..%2f..%2fsecret/file",
    "/contexts/secret%00/file",
    "/contexts/linked/file",
    "/contexts/./secret/file",
    "/../secret.kvs",
    "//secret.kvs",
    "http://127.0.0.1/contexts/..%2fsecret/file",
]


def test_no_path_leads_out_of_the_store(tmp_path: Path) -> None:
    write_store(tmp_path / "secret.kvs")
    inner = tmp_path / "inner"
    write_store(inner / "0.kvs")
    os.symlink(tmp_path / "secret.kvs", inner / "linked.kvs")
    (tmp_path / "elsewhere").mkdir()
    write_store(tmp_path / "elsewhere" / "deep.kvs")
    os.symlink(tmp_path / "elsewhere", inner / "folder")
    with ServerProcess(inner) as server:
        for path in [*PATHS, "/contexts/folder%2fdeep/file", "/contexts/folder/deep/file"]:
            said = raw(server.url, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
            assert said.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), path
            assert b"kvferry store" not in said, path
        assert b"kvferry store 1" in raw(
            server.url, b"GET /contexts/0/file HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        )


def test_a_wrong_token_gets_nothing_but_a_word(folder: Path) -> None:
    with ServerProcess(folder, token="open-sesame-42") as server:
        for path in ("/contexts", "/contexts/0/index", "/contexts/0/file", "/contexts/0/chunks?ids=0", "/nothing"):
            for line in ("", "authorization: Bearer open-sesame-43\r\n", "authorization: open-sesame-42\r\n"):
                said = raw(server.url, f"GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{line}\r\n".encode())
                assert said.startswith(b"HTTP/1.1 401")
                assert said.endswith(b"needs the right token")
        with CloudClient(server.url, token="open-sesame-43") as client, pytest.raises(InputError, match="right token"):
            client.fetch(ALL, 0, Watch())
    for bad in ("a\r\nx: y", "schlüssel"):
        with pytest.raises(InputError, match="letters, digits and signs"):
            CloudClient("http://127.0.0.1:1", token=bad)


def test_a_request_that_comes_byte_by_byte(folder: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(folder, monkeypatch, HEAD_S=0.5) as url:
        host, port = url.removeprefix("http://").split(":")

        def dawdle() -> None:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                for byte in b"GET /contexts HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x" * 1000:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.02)

        with pytest.raises(ConnectionError):
            dawdle()
        with CloudClient(url) as client:
            assert client.fetch(ALL, 0, Watch()) == whole


@pytest.mark.long
def test_stopping_does_not_wait_for_the_slow(folder: Path) -> None:
    with ServerProcess(folder, LinkSpec(rate_bytes_per_s=1e3)) as server, CloudClient(server.url, away_s=0) as client:
        start_s = time.monotonic()
        threading.Timer(0.5, os.kill, (server.process_id, signal.SIGTERM)).start()
        with pytest.raises(LinkDown):
            client.fetch(ALL, 0, Watch())
        server._process.wait(10)
        assert time.monotonic() - start_s < 8


def test_a_server_that_says_much_goes_on_serving(folder: Path, tmp_path: Path) -> None:
    """Beyond what a pipe holds: it says a line of some 250 bytes to every request for a damaged store."""
    stores = tmp_path / ("s" * 200)
    stores.mkdir()
    data = (folder / "0.kvs").read_bytes()
    (stores / "half.kvs").write_bytes(data[: len(data) // 2])
    (stores / "0.kvs").write_bytes(data)
    with ServerProcess(stores) as server, CloudClient(server.url, away_s=0) as client:
        for _ in range(600):
            with pytest.raises(LinkDown, match="store is damaged"):
                client.index("half")
        assert client.index("0")
        assert len(server._said) == 20


_INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from kvferry.codecs.pool import CodecPool
from kvferry.cloud.server_process import ServerProcess

signal.signal(signal.SIGINT, lambda *_: None)  # this one goes on; in a child it would be Python's own, which raises
done = threading.Event()

def interrupt():
    while not done.wait(0.02):
        os.killpg(0, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
if __name__ == "__main__":
    with ServerProcess(Path(sys.argv[1])) as server, CodecPool(2) as pool:
        pool.decode([Path(sys.argv[2]).read_bytes()]).result()
        print(server.url, len(pool.process_ids))
        done.set()
"""


def test_ctrl_c_is_the_parents_alone(folder: Path, tmp_path: Path) -> None:
    """To all of the group, as a terminal sends it, all the time while the children begin and import."""
    program, chunk = tmp_path / "program.py", tmp_path / "chunk"
    program.write_text(_INTERRUPTED)
    chunk.write_bytes(encode("fp16", *np.zeros((2, 4, 8))))
    ended = subprocess.run(
        [sys.executable, str(program), str(folder), str(chunk)],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("http://127.0.0.1:")


def test_files_where_the_user_is_are_not_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "socket", "pickle", "json", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')\n")
    monkeypatch.chdir(tmp_path)
    with ServerProcess(folder) as server, CloudClient(server.url) as client:
        assert client.contexts() == ["0"]
    with CodecPool(1) as pool:
        assert len(pool.decode([encode("fp16", *np.zeros((2, 4, 8)))]).result()) == 1
    assert "PYTHONSAFEPATH" not in os.environ


def test_a_server_does_not_outlive_its_owner(folder: Path) -> None:
    server = ServerProcess(folder)
    assert server._process.stdin is not None
    server._process.stdin.close()  # as the end of this process would
    server._process.wait(10)
    server._process.stdin = None
    server.stop()


# --- all of it together ----------------------------------------------------------------------------------------------


class _NoModel:
    """These machines compute nothing."""

    def run(self, op: Op, request: int | None, inputs: Any = ()) -> None:
        raise AssertionError(op)


def test_chunks_come_through_the_machine_and_are_decoded(server: ServerProcess, folder: Path) -> None:
    with CloudClient(server.url) as client, CodecPool(1) as pool, Store(folder / "0.kvs") as store:

        def decode_fetched(op: Decompress, request: int | None, inputs: Sequence[Any]) -> list[KeysValues]:
            return pool.decode(split(inputs[0].payload)).result()

        with LiveMachine("device", _NoModel(), capacity_bytes=1e9, fetcher=client, decode=decode_fetched) as machine:
            decoded = []
            for i in range(12):
                fetched = machine.fetch(Chunks(0, (2 * i, 2 * i + 1), 1.0), request=0)
                decoded.append(machine.submit(Decompress(2 * 256 * 64), after=(fetched,), on="decompress", request=0))
            machine.env.run(until=machine.env.all_of(decoded))
        for i, ticket in enumerate(decoded):
            for (k, v), data in zip(ticket.value, store.read([2 * i, 2 * i + 1]), strict=True):
                assert (k == decode(data)[0]).all() and (v == decode(data)[1]).all()


def test_a_dead_cloud_fails_the_ticket(folder: Path) -> None:
    server = ServerProcess(folder)
    with CloudClient(server.url) as client:
        client.index("0")
        server.stop()
        with (
            LiveMachine("device", _NoModel(), capacity_bytes=1e9, fetcher=client) as machine,
            pytest.raises(LinkDown, match="gives nothing"),
        ):
            machine.env.run(until=machine.fetch(ALL, request=0))
