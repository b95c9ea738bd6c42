"""The cloud: its pace by hand, then the server itself over real connections on this machine."""

import asyncio
import gc
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cloud.chunk_ids import read_ids, write_ids
from kvferry.cloud.client import CloudClient
from kvferry.cloud.pacing import Bottleneck
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import Store, StoredModel, StoreHeader, StoreWriter
from kvferry.codecs.codec import decode, encode, split
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, KvferryError, LinkDown
from kvferry.specs.link import LinkSpec
from kvferry.traces.rate import RateTrace

MODEL = StoredModel(name="tiny", fingerprint="f1", tokenizer="bytes", layers=3, kv_heads=2, head_dim=16)
TOKEN = "open-sesame-42"


def write_store(path: Path, tokens: tuple[int, ...] = (64, 64, 20), codec: str = "huffman") -> Path:
    """A context of random numbers: 3 x 3 x 2 chunks."""
    header = StoreHeader.at_all_levels(MODEL, tokens, codec)
    rng = np.random.default_rng(7)
    with StoreWriter(path, header, range(sum(tokens))) as writer:
        for t in range(len(tokens)):
            for l in range(MODEL.layers):
                for h in range(MODEL.kv_heads):
                    writer.put(t, l, h, encode(codec, *rng.standard_normal((2, tokens[t], MODEL.head_dim))))
    return path


class Watch(threading.Event):
    """What a fetch reports, and when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_done = 0.0

    def moved(self, n_bytes: float) -> None:
        self.bytes_done += n_bytes


# --- the pace --------------------------------------------------------------------------------------------------------


def arrivals(bottleneck: Bottleneck, asked: list[tuple[float, str, int]], every_s: float = 0.001) -> list[float]:
    """When the last byte of each transfer (asked for at, flow, bytes) arrives, `serve` being called so often."""
    transfers, waiting, now_s = [], list(asked), 0.0
    while waiting or any(transfer.unserved_bytes for transfer in transfers):
        while waiting and waiting[0][0] <= now_s:
            at_s, flow, n_bytes = waiting.pop(0)
            transfers.append(bottleneck.enter(flow, n_bytes, at_s))
        bottleneck.serve(now_s)
        now_s += every_s
    assert all(sum(n for _, n in transfer.due) == transfer.n_bytes for transfer in transfers)
    return [transfer.due[-1][0] for transfer in transfers]


def test_a_transfer_takes_its_bytes_over_the_rate_and_the_round_trip() -> None:
    # 100,000 bytes at 1 MB/s: 0.1 s. Half of 20 ms before the bottleneck, half behind it.
    assert arrivals(Bottleneck(RateTrace.constant(1e6)), [(0, "a", 100_000)]) == pytest.approx([0.1])
    assert arrivals(Bottleneck(RateTrace.constant(1e6), 0.02), [(0, "a", 100_000)]) == pytest.approx([0.12])


def test_transfers_in_a_row_pay_the_round_trip_once() -> None:
    done = arrivals(Bottleneck(RateTrace.constant(1e6), 0.02), [(0, "a", 50_000), (0, "a", 50_000)])
    assert done == pytest.approx([0.07, 0.12])


def test_idle_time_is_not_made_up_for() -> None:
    done = arrivals(Bottleneck(RateTrace.constant(1e6)), [(0, "a", 10_000), (0.5, "a", 10_000)])
    assert done == pytest.approx([0.01, 0.51])


def test_flows_take_turns() -> None:
    # Together 200,000 bytes in 0.2 s; they end within a slice (4 ms) or two of each other.
    first, second = arrivals(Bottleneck(RateTrace.constant(1e6)), [(0, "a", 100_000), (0, "b", 100_000)])
    assert second == pytest.approx(0.2)
    assert first == pytest.approx(0.2, abs=0.009)
    # A short transfer beside a long one has half of the rate: 20,000 bytes take 0.04 s.
    _, short = arrivals(Bottleneck(RateTrace.constant(1e6)), [(0, "a", 100_000), (0, "b", 20_000)])
    assert short == pytest.approx(0.04, abs=0.009)


def test_the_trace_is_followed_through_an_outage() -> None:
    # 1 MB/s, nothing from 0.05 to 0.25 s, then 2 MB/s: 50,000 bytes by 0.05 s, the other 50,000 in 0.025 s after 0.25.
    trace = RateTrace(np.array([0, 0.05, 0.25, 1.0]), np.array([1e6, 0.0, 2e6]))
    assert arrivals(Bottleneck(trace), [(0, "a", 100_000)]) == pytest.approx([0.275])


def test_a_late_wake_up_costs_nothing() -> None:
    trace = RateTrace.from_samples([1e6, 3e5, 2e6, 5e5], 0.01)
    asked = [(0.0, "a", 30_000), (0.0, "a", 20_000)]
    on_time = arrivals(Bottleneck(trace), asked)
    assert arrivals(Bottleneck(trace), asked, every_s=0.7) == pytest.approx(on_time)
    assert on_time[-1] == pytest.approx(trace.finish_s(0, 50_000))


def test_who_leaves_makes_room() -> None:
    bottleneck = Bottleneck(RateTrace.constant(1e6))
    long, short = bottleneck.enter("a", 10**9, 0.0), bottleneck.enter("a", 10_000, 0.0)
    bottleneck.serve(0.1)
    bottleneck.leave(long)
    bottleneck.serve(0.2)
    # The slice being served at 0.1 s ends 4 ms later, at most; then 10,000 bytes take 0.01 s.
    assert 0.11 <= short.due[-1][0] <= 0.115


def test_a_replay_begins_with_the_first_transfer_or_when_started() -> None:
    trace = RateTrace(np.array([0, 1.0, 2.0]), np.array([1e6, 1e3]))
    bottleneck = Bottleneck(trace)
    assert arrivals(bottleneck, [(5.0, "a", 10_000)], every_s=0.25) == pytest.approx([5.01])
    bottleneck.restart(6.5)
    assert arrivals(bottleneck, [(6.5, "a", 10_000)], every_s=0.25) == pytest.approx([6.51])


def test_a_trace_that_ends_takes_the_link_down() -> None:
    bottleneck = Bottleneck(RateTrace(np.array([0, 0.1]), np.array([1e6]), "end"))
    transfer = bottleneck.enter("a", 10**6, 0.0)
    bottleneck.check(0.0)
    for now_s in (0.05, 0.1, 0.2):
        bottleneck.serve(now_s)
    assert isinstance(transfer.down, LinkDown)
    with pytest.raises(LinkDown, match="has ended, at 0.1 s"):
        bottleneck.check(0.2)


@given(
    rates=st.lists(st.floats(0, 1e7), min_size=1, max_size=8).filter(lambda rates: max(rates) > 1e4),
    asked=st.lists(
        st.tuples(st.floats(0, 0.3), st.sampled_from("abc"), st.integers(1, 100_000)), min_size=1, max_size=6
    ),
    rtt_s=st.sampled_from([0.0, 0.03]),
)
def test_no_byte_comes_before_the_trace_allows_and_none_is_late(
    rates: list[float], asked: list[tuple[float, str, int]], rtt_s: float
) -> None:
    trace = RateTrace.from_samples(rates, 0.05)
    bottleneck, asked = Bottleneck(trace, rtt_s), sorted(asked)
    transfers = [bottleneck.enter(flow, n_bytes, at_s) for at_s, flow, n_bytes in asked]
    now_s = 0.0
    while (again_s := bottleneck.serve(now_s)) is not None:
        assert again_s > now_s
        now_s = again_s
    portions = sorted(portion for transfer in transfers for portion in transfer.due)
    # While anything waits the link carries all that it can: so the last byte of each busy period, and of all, is
    # where the integral says.
    began_s, end_s = asked[0][0], -math.inf
    for due_s, n_bytes in portions:
        waiting = [transfer.enters_s for transfer in transfers if transfer.due[-1][0] >= due_s]
        begin_s = max(end_s, min(waiting))
        end_s = begin_s + trace.finish_s(begin_s - began_s, n_bytes) - (begin_s - began_s)
        assert due_s == pytest.approx(end_s + rtt_s / 2, abs=1e-6)
    for transfer, (_, _, n_bytes) in zip(transfers, asked, strict=True):
        assert sum(n for _, n in transfer.due) == n_bytes


# --- chunk ids -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_ids_are_read_as_they_were_written(ids: list[int]) -> None:
    assert read_ids(write_ids(ids)) == ids


def test_ids_in_runs() -> None:
    assert write_ids([3, 4, 5, 9, 2]) == "3-5,9,2"
    for bad in ("", "1,", "-1", "1-", "3-1", "a", "1;2", "1 ", "0-65536", "0-40000,0-40000", "٣", "9" * 10):
        with pytest.raises(InputError, match="ids="):
            read_ids(bad)


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    write_store(folder / "0.kvs")
    write_store(folder / "other.kvs", tokens=(10,))
    (folder / "notes.txt").write_text("SECRET")
    return folder


@pytest.fixture(scope="module")
def extra() -> None:
    pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server(folder: Path, extra: None) -> Iterator[ServerProcess]:
    with ServerProcess(folder) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[CloudClient]:
    with CloudClient(server.url) as client:
        yield client


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
    finally:
        connection.close()


@pytest.mark.torch
def test_contexts_and_their_index(client: CloudClient, folder: Path) -> None:
    assert client.contexts() == ["0", "other"]
    with Store(folder / "0.kvs") as store:
        assert client.index("0").to_bytes() == store.table
    client.index("0", MODEL)


@pytest.mark.torch
@pytest.mark.parametrize("ids", [(0,), (17,), tuple(range(18)), (3, 4, 5, 12, 0), (5, 5)])
def test_chunks_come_as_they_lie_in_the_store(client: CloudClient, folder: Path, ids: tuple[int, ...]) -> None:
    watch = Watch()
    payload = client.fetch(Chunks(0, ids, 1.0), None, watch)
    with Store(folder / "0.kvs") as store:
        assert payload == b"".join(store.read(ids))
    assert watch.bytes_done == len(payload)
    assert [decode(chunk)[0].shape[1] for chunk in split(payload)] == [16] * len(ids)


@pytest.mark.torch
def test_connections_are_opened_ahead(server: ServerProcess) -> None:
    with CloudClient(server.url) as client:
        client.connect(3)
        ahead = list(client._requests.connections.idle)
        client.connect(2)
        assert client._requests.connections.idle == ahead and all(connection.sock for connection in ahead)
        client.contexts()
        assert client._requests.connections.idle[-1] is ahead[-1]  # it was asked over, and given back
    with CloudClient("http://127.0.0.1:1") as client:
        client.connect(3)
        assert client._requests.connections.idle == []


def test_connections_are_kept(client: CloudClient) -> None:
    client.contexts()
    (kept,) = client._requests.connections.idle
    for i in range(5):
        client.fetch(Chunks(0, (i,), 1.0), None, Watch())
    assert client._requests.connections.idle == [kept]


@pytest.mark.torch
def test_ranges_and_versions(server: ServerProcess, folder: Path) -> None:
    whole = (folder / "0.kvs").read_bytes()
    status, headers, body = ask(server.url, "/contexts/0/file")
    assert (status, body, headers["accept-ranges"]) == (200, whole, "bytes")
    status, headers, body = ask(server.url, "/contexts/0/file", range="bytes=100-199")
    assert (status, body, headers["content-range"]) == (206, whole[100:200], f"bytes 100-199/{len(whole)}")
    status, headers, body = ask(server.url, "/contexts/0/file", "HEAD")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(whole)))
    with Store(folder / "0.kvs") as store:
        three = b"".join(store.read([7, 8, 2]))
    # From the middle of the second chunk on.
    at = len(three) // 2
    status, headers, body = ask(
        server.url, "/contexts/0/chunks?ids=7-8,2", range=f"bytes={at}-", if_match=headers["etag"]
    )
    assert (status, body) == (206, three[at:])
    for bad in (
        f"bytes={len(three)}-",
        "bytes=-5",
        "bytes=5-4",
        "bytes=0-1,3-4",
        "lines=1-2",
        "bytes=" + "9" * 30 + "-",
    ):
        assert ask(server.url, "/contexts/0/chunks?ids=7-8,2", range=bad)[0] == 416
    assert ask(server.url, "/contexts/0/chunks?ids=7", if_match='"another"')[0] == 412


@pytest.mark.torch
@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/contexts/none/index", 404, "no context 'none' here; there are: 0, other"),
        ("/contexts/0/chunks?ids=18", 400, "has chunks 0 to 17, not 18 to 18"),
        ("/contexts/0/chunks?ids=0&level=1", 400, "levels 0 to 0"),
        ("/contexts/0/chunks?ids=0&level=x", 400, "level 'x' is not a number"),
        ("/contexts/0/chunks", 400, "write them like ids=0-7,12"),
        ("/contexts/0/chunks?ids=0-99999999", 400, "65,536 chunks at most"),
        ("/", 404, ""),
        ("/contexts/notes.txt/file", 404, "no context"),
    ],
)
def test_refusals_say_why(server: ServerProcess, path: str, status: int, says: str) -> None:
    came, _, body = ask(server.url, path)
    assert (came, says in body.decode()) == (status, True)


@pytest.mark.torch
def test_only_what_is_offered_and_nothing_large(server: ServerProcess) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(server.url, "/contexts", method)[0] == 405
    assert ask(server.url, "/replay", "POST")[0] == 204
    assert ask(server.url, "/replay", "POST", content_length="5")[0] == 413
    assert ask(server.url, "/contexts/0/chunks?ids=" + "1," * 40_000 + "1")[0] == 414
    with suppress(ConnectionError):  # it may hang up before all of it is sent
        assert ask(server.url, "/contexts", x="y" * 600_000)[0] == 400
    assert ask(server.url, "/contexts")[0] == 200


@pytest.mark.torch
@pytest.mark.parametrize(("more", "status"), [(0, b"200"), (1, b"431")])
def test_a_head_has_64_kib_and_no_byte_more(server: ServerProcess, more: int, status: bytes) -> None:
    """Also where all of it comes at once."""
    host, port = server.url.removeprefix("http://").split(":")
    begun = f"GET /contexts?a=b HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\nx: "
    head = begun + "y" * (2**16 + more - len(begun) - 4) + "\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(head.encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 %s " % status)


@pytest.mark.torch
def test_a_page_under_another_name_gets_nothing(server: ServerProcess) -> None:
    assert ask(server.url, "/contexts", host="evil.example:8100")[0] == 403
    assert ask(server.url, "/contexts", host="localhost:8100")[0] == 200


@pytest.mark.torch
def test_bytes_come_no_faster_than_the_link(folder: Path, extra: None) -> None:
    with ServerProcess(folder, LinkSpec(rate_bytes_per_s=50e3, rtt_s=0.1)) as server, CloudClient(server.url) as client:
        client.index("0")
        start_s, watch, seen = time.monotonic(), Watch(), []
        watch.moved = lambda n_bytes: seen.append((time.monotonic() - start_s, n_bytes))  # type: ignore[method-assign]
        payload = client.fetch(Chunks(0, tuple(range(18)), 1.0), 3, watch)
        came = 0.0
        for at_s, n_bytes in seen:
            came += n_bytes
            assert came <= 50e3 * max(0.0, at_s - 0.1) + 1
        assert came == len(payload)


@pytest.mark.torch
def test_a_token_is_asked_for_and_never_shown(folder: Path, extra: None) -> None:
    with ServerProcess(folder, token=TOKEN) as server:
        with CloudClient(server.url, token=TOKEN) as client:
            assert client.contexts() == ["0", "other"]
        for token in (None, "wrong", TOKEN + "x", TOKEN[:-1]):
            with CloudClient(server.url, token=token) as client:
                with pytest.raises(InputError, match="needs the right token") as caught:
                    client.contexts()
                assert TOKEN not in str(caught.value)


@pytest.mark.torch
def test_a_server_that_does_not_come_up_says_why(tmp_path: Path, extra: None) -> None:
    with pytest.raises(KvferryError, match="did not come up: .*no such file or folder"):
        ServerProcess(tmp_path / "none")


@pytest.mark.parametrize(
    "url", ["", "ftp://127.0.0.1", "127.0.0.1:8100", "http://", "http://a:b", "http://u:p@h/", "http://["]
)
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(InputError, match="is no server"):
        CloudClient(url)


# --- the command -----------------------------------------------------------------------------------------------------


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from kvferry.cli.main import main; main()", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


@pytest.mark.torch
def test_the_command_serves_until_interrupted(folder: Path, extra: None) -> None:
    child = command(str(folder), "--port", "0", "--rate", "800 Mbit/s", "--rtt", "4 ms", KVFERRY_TOKEN=TOKEN)
    assert child.stdout is not None
    url = child.stdout.readline().strip()
    with CloudClient(url, token=TOKEN) as client:
        assert len(client.fetch(Chunks(0, (0, 1), 1.0), 0, Watch())) > 100
        with pytest.raises(InputError, match="needs the right token"):
            CloudClient(url).contexts()
        child.send_signal(signal.SIGINT)
        code, out, err = ended(child)
    assert (code, out) == (130, "")
    assert "as 800 Mbit/s allows, round trip 4 ms, to clients with the token; Ctrl-C stops" in err
    assert "Traceback" not in err and TOKEN not in err


@pytest.mark.torch
def test_ctrl_c_as_the_url_is_told_is_heard_by_the_loop(folder: Path, extra: None) -> None:
    from kvferry.cloud.server import serve

    loops = []

    def tell(url: str) -> None:
        loops.append(asyncio.get_running_loop())
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        serve(folder, tell=tell)
    assert [loop.is_closed() for loop in loops] == [True]


@pytest.mark.torch
def test_an_event_loop_is_whole_before_a_signal_is_heard(extra: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.cloud.connections import new_event_loop

    made, ignored = BaseSelectorEventLoop._make_self_pipe, []

    def interrupted(loop: BaseSelectorEventLoop) -> None:
        made(loop)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(BaseSelectorEventLoop, "_make_self_pipe", interrupted)
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: ignored.append(str(lost.exc_value)))
    with warnings.catch_warnings():
        # That nobody closed it.
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(KeyboardInterrupt):
            new_event_loop()
        gc.collect()
    assert ignored == []


@pytest.mark.torch
def test_a_file_may_hold_the_token(folder: Path, tmp_path: Path, extra: None) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    child = command(str(folder / "0.kvs"), "--port", "0", "--token-file", str(tmp_path / "token"))
    assert child.stdout is not None
    with CloudClient(child.stdout.readline().strip(), token=TOKEN) as client:
        assert client.contexts() == ["0"]
    child.send_signal(signal.SIGINT)
    assert ended(child)[0] == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none"], "no such file or folder"),
        (["notes.txt"], "not a store"),
        ([".", "--host", "0.0.0.0"], "a token is needed there"),
        ([".", "--host", "192.0.2.1"], "a token is needed there"),
        ([".", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        ([".", "--trace", "wifi-campos"], "Did you mean 'wifi-campus'"),
        ([".", "--rate", "800"], "--rate: '800' has no unit"),
        ([".", "--rtt", "4 MB"], "--rtt: '4 MB' is a size"),
        ([".", "--trace", "wifi-campus", "--rate", "1 Mbit/s"], "--trace and --rate: one"),
        ([".", "--token-file", "none"], "No such file"),
        ([".", "--token-file", "short"], "short: a token has at least 8 letters"),
    ],
)
@pytest.mark.torch
def test_the_users_mistakes_end_in_one_line(
    arguments: list[str],
    says: str,
    folder: Path,
    extra: None,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[int, str, str]],
) -> None:
    (folder / "short").write_text("abc")
    monkeypatch.chdir(folder)
    code, out, err = call("serve", *arguments)
    assert (code, out) == (2, "")
    assert says in err and err.startswith("kvferry: ") and err.count("\n") == 1


@pytest.mark.torch
def test_a_port_that_is_taken(folder: Path, extra: None) -> None:
    from kvferry.cloud.server import listen

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot listen on 127.0.0.1"):
        listen("127.0.0.1", taken.getsockname()[1], None)
