"""Stores that a server is given to keep: whole ones alone, from those with its secret, where it takes any."""

import os
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette

from kvferry.cloud.client import CloudClient
from kvferry.cloud.guard import Guard
from kvferry.cloud.server import MOST_PUT_BYTES, serve
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import Store, StoredModel, StoreHeader, StoreWriter
from kvferry.cloud.store_folder import MOST_OPEN, StoreFolder
from kvferry.codecs.codec import encode
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, LinkDown
from kvferry.specs.link import LinkSpec

MODEL = StoredModel(name="tiny", fingerprint="f1", tokenizer="bytes", layers=3, kv_heads=2, head_dim=16)
TOKEN = "open-sesame-42"


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one token chunk."""
    path = tmp_path_factory.mktemp("made") / "block.kvs"
    rng = np.random.default_rng(7)
    with StoreWriter(path, StoreHeader.at_all_levels(MODEL, (64,), "huffman"), range(64)) as writer:
        for l, h in np.ndindex(3, 2):
            writer.put(0, l, h, encode("huffman", *rng.standard_normal((2, 64, 16))))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "stores"
    made.mkdir()
    return made


class _NeverSet:
    def moved(self, n_bytes: float) -> None:
        pass

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    link = LinkSpec.model_validate({"rate": "100 MB/s", "rtt": "1 ms", "up": {"rate": "50 MB/s"}})
    with ServerProcess(folder, link, token=TOKEN, takes=True) as server:
        yield server.url


def put(url: str, name: str, content: bytes, token: str = TOKEN, **headers: str) -> int:
    host, port = url.removeprefix("http://").split(":")
    connection = HTTPConnection(host, int(port), timeout=10)
    connection.request("PUT", f"/contexts/{name}", content, {"authorization": f"Bearer {token}", **headers})
    return connection.getresponse().status


def test_what_was_put_can_be_fetched(url: str, folder: Path, block: Path) -> None:
    with Store(block) as store, CloudClient(url, token=TOKEN, names=lambda _: "turn-1") as client:
        client.put("turn-1", block.read_bytes(), store.index)
        assert client.contexts() == ["turn-1"]
        came = bytes(client.fetch(Chunks(0, tuple(range(6)), 0.0), None, _NeverSet()))
        assert came == b"".join(store.read(range(6)))
        # Once more: it is the newer one.
        client.put("turn-1", block.read_bytes(), store.index)
        assert (folder / "turn-1.kvs").read_bytes() == block.read_bytes()
    assert [one.name for one in folder.iterdir()] == ["turn-1.kvs"]


def test_what_is_no_whole_store_is_not_kept(url: str, folder: Path, block: Path) -> None:
    whole = block.read_bytes()
    damaged = bytearray(whole)
    damaged[40] ^= 1
    for content in (b"", b"no store", whole[:-1], bytes(damaged)):
        assert put(url, "turn-1", content) == 400
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "%2e%2e%2fpasswd", ".hidden", "a" * 101, "a%20b"])
def test_names_lead_nowhere_else(url: str, folder: Path, block: Path, name: str) -> None:
    assert put(url, name, block.read_bytes()) in (400, 404, 405)
    assert list(folder.iterdir()) == []


def test_others_and_too_much_are_refused(url: str, folder: Path, block: Path) -> None:
    assert put(url, "turn-1", block.read_bytes(), token="another") == 401
    assert put(url, "turn-1", b"", **{"content-length": str(MOST_PUT_BYTES + 1)}) == 413
    assert put(url, "turn-1", block.read_bytes(), origin="http://elsewhere.example") == 403
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("length", "is_taken"), [("10", True), ("11", False), ("0" * 20 + "11", False), ("", False)])
def test_lengths_by_themselves(length: str, is_taken: bool) -> None:
    """Whatever a parser of HTTP lets through: zeros before what is too long."""
    head = [(b"host", b"localhost"), (b"content-length", length.encode())]
    scope = {"headers": head, "raw_path": b"/", "query_string": b"", "method": "PUT", "http_version": "1.1"}
    refused = Guard(Starlette(), None, 10)._refusal(scope)
    assert (refused is None) == is_taken and (refused is None or refused.status_code == 413)


def test_other_servers_take_nothing(folder: Path, block: Path) -> None:
    with ServerProcess(folder, token=TOKEN) as server:
        assert put(server.url, "turn-1", block.read_bytes()) == 413
    with pytest.raises(InputError, match="needs a token"):
        serve(folder, takes=True)
    with pytest.raises(InputError, match="no context can be put"):
        StoreFolder(block).keep("turn-1", block.read_bytes())


def test_files_that_are_put_are_not_held_open(folder: Path, block: Path) -> None:
    stores, content = StoreFolder(folder), block.read_bytes()
    for n in range(80):
        stores.keep(f"turn-{n}", content)
    assert _open_files(folder) == 0
    for name in stores.names():
        assert stores.open(name).tag == stores.keep(name, content)
    assert 0 < _open_files(folder) <= MOST_OPEN


def _open_files(folder: Path) -> int:
    inside = str(folder.resolve())
    return sum(os.path.realpath(f"/proc/self/fd/{fd}").startswith(inside) for fd in os.listdir("/proc/self/fd"))


def test_a_way_up_that_has_ended(folder: Path, block: Path, tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("time_s,bytes_per_s\n0,1000000\n0.001,1000000\n")
    link = LinkSpec.model_validate({"rate": "100 MB/s", "up": {"trace": str(trace), "on_end": "end"}})
    with (
        ServerProcess(folder, link, token=TOKEN, takes=True) as server,
        Store(block) as store,
        CloudClient(server.url, token=TOKEN, attempts=1) as client,
        pytest.raises(LinkDown),
    ):
        client.put("turn-1", block.read_bytes(), store.index)
    assert list(folder.iterdir()) == []
