"""A cloud that dies, stalls, lies or keeps its door shut, in the middle of a load through the unchanged pipeline.

The first token always comes, soon; what was computed and what was streamed make up the context; and every chunk that
is put in place is the very one that was stored.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harmful_proxy import Proxy

from kvferry.backends.live.engine.link import Fetched
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.cloud.client import CloudClient
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import Store, StoredModel, StoreHeader, StoreWriter
from kvferry.codecs.codec import encode, split
from kvferry.machine.ops import Advance, Chunks, Decompress, KvRef, Op, Project
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.reuse import Admission, ContextRequest, context_reuse
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.record import RequestRecord
from kvferry.scenarios.loader import load_model
from kvferry.specs.errors import InputError, LinkDown
from kvferry.specs.link import LinkSpec

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.torch

MODEL = load_model("tiny")
T, L, H, TOKENS = 8, MODEL.layers, MODEL.kv_heads, 64
STORED = StoredModel(name="tiny", fingerprint="f", tokenizer="bytes", layers=L, kv_heads=H, head_dim=MODEL.head_dim)
# A unit, all heads of a layer, takes some 8 ms on the link, and computing one takes longer.
BYTES_PER_S, OP_S = 1e6, 1e-2
# By then the first token is there, or it hangs; on a busy machine too.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    header = StoreHeader.at_all_levels(STORED, (TOKENS,) * T, "fp16")
    rng = np.random.default_rng(5)
    with StoreWriter(folder / "0.kvs", header, range(T * TOKENS)) as writer:
        for t, l, h in np.ndindex(T, L, H):
            writer.put(t, l, h, encode("fp16", *rng.standard_normal((2, TOKENS, MODEL.head_dim))))
    return folder


@pytest.fixture(scope="module")
def stored(folder: Path) -> Iterator[list[bytes]]:
    with Store(folder / "0.kvs") as store:
        yield store.read(range(T * L * H))


class Fetcher:
    """A client that says when it has given up. ``harmed``: from then on nothing is computed before that, however late a
    busy machine makes it."""

    def __init__(self, client: CloudClient) -> None:
        self._client, self.harmed, self._gave_up = client, False, threading.Event()

    def fetch(self, chunks: Chunks, request: int | None, moving: Any) -> memoryview:
        try:
            return self._client.fetch(chunks, request, moving)
        except LinkDown:
            self._gave_up.set()
            raise

    def wait(self) -> None:
        assert not self.harmed or self._gave_up.wait(PATIENCE_S / 2)


class Device:
    """Computes slowly, keeps what KV it has, and looks at every chunk that it is given."""

    def __init__(self, stored: list[bytes], placed: Callable[[int], None], fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self.kv: set[tuple[int, int, int]] = set()
        self.complete_when_read: list[bool] = []
        self.wrong: list[int] = []
        self.chunks_placed = 0
        self._stored, self._placed = stored, placed
        self._lock = threading.Lock()

    def run(self, op: Op, request: int | None, inputs: Any = ()) -> None:
        time.sleep(OP_S)
        self._fetcher.wait()
        if isinstance(op, Project):
            assert op.kv is not None
            with self._lock:
                self.kv.update((op.kv.token_chunk, op.kv.layer, h) for h in range(H))
        elif not isinstance(op, Advance):
            self.complete_when_read.append(len(self.kv) == T * L * H)

    def decode(self, op: Decompress, request: int | None, inputs: Sequence[Any]) -> tuple[int, ...]:
        fetched = inputs[0]
        assert isinstance(fetched, Fetched)
        came = split(fetched.payload)
        # Raised later: the load would take an error for one more fault, and compute what is missing.
        self.wrong += [i for i, chunk in zip(fetched.chunks.ids, came, strict=True) if chunk != self._stored[i]]
        return fetched.chunks.ids

    def place(self, kv: KvRef, to: str, request: int | None, inputs: Sequence[Any]) -> None:
        with self._lock:
            for t, l, h in zip(*np.unravel_index(inputs[0], (T, L, H)), strict=True):
                self.kv.add((int(t), int(l), int(h)))
            self.chunks_placed += len(inputs[0])
        self._placed(self.chunks_placed)


def load(
    system: str, client: CloudClient, stored: list[bytes], harm: Callable[[int], bool] = lambda chunks: False
) -> tuple[RequestRecord, Device]:
    """Runs one request over the context; fails when there is no first token in time. `harm` is called with the number
    of chunks that are there, and returns whether the link is at its end by now."""
    context = Context(
        sequence=0,
        model=MODEL,
        coupling="all_heads",
        tokens=np.full(T, TOKENS),
        active_blocks=np.ones((T, L, H), dtype=int),
        encoded_bytes=np.array([len(chunk) for chunk in stored], float).reshape(T, L, H),
    )
    request = ContextRequest(
        request=0,
        context=context,
        problem=context.problem(lambda op: np.full(np.shape(op.tokens), OP_S)),
        question_tokens=1,
        output_tokens=1,
        outlook=Outlook(bytes_per_s=BYTES_PER_S, rtt_s=0.0),
    )
    fetcher = Fetcher(client)

    def placed(chunks: int) -> None:
        fetcher.harmed = harm(chunks) or fetcher.harmed

    device = Device(stored, placed, fetcher)
    with LiveMachine(
        "device", device, capacity_bytes=1e9, fetcher=fetcher, decode=device.decode, place=device.place
    ) as machine:
        env = machine.env
        story = env.process(context_reuse(machine, request, SYSTEMS[system].new_loader(), Admission(machine), Pace()))
        env.run(until=env.any_of([story, env.timeout(PATIENCE_S)]))
        assert story.triggered, "it hangs"
    (record,) = story.value
    assert record.units_computed + record.units_streamed == T * L
    assert device.complete_when_read == [True]
    assert device.wrong == []
    return record, device


SYSTEMS_THAT_STREAM = pytest.mark.parametrize("system", ["ferry", pytest.param("stream-only", marks=pytest.mark.long)])


@SYSTEMS_THAT_STREAM
def test_the_server_is_killed_in_the_middle(folder: Path, stored: list[bytes], system: str) -> None:
    with (
        ServerProcess(folder, LinkSpec(rate_bytes_per_s=BYTES_PER_S)) as server,
        CloudClient(server.url, away_s=0.1) as client,
    ):

        def kill(chunks: int) -> bool:
            with suppress(ProcessLookupError):
                if chunks >= H:
                    os.kill(server.process_id, signal.SIGKILL)
            return chunks >= H

        record, device = load(system, client, stored, kill)
    assert H <= device.chunks_placed < T * L * H
    assert record.units_computed > 0
    assert record.link_down is not None and "gives nothing, after" in record.link_down


def test_bytes_of_a_unit_that_breaks_off_are_booked(
    folder: Path, stored: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[float] = []
    with ServerProcess(folder, LinkSpec(rate_bytes_per_s=1e5)) as server, CloudClient(server.url, away_s=0.1) as client:
        whole = client.fetch

        def fetch(chunks: Chunks, request: int | None, moving: Any) -> memoryview:
            moved = moving.moved

            def kill(n_bytes: float) -> None:
                moved(n_bytes)
                if chunks.ids[0] and 0 < moving.bytes_done < chunks.n_bytes and not had:
                    had.append(moving.bytes_done)
                    os.kill(server.process_id, signal.SIGKILL)

            moving.moved = kill
            return whole(chunks, request, moving)

        monkeypatch.setattr(client, "fetch", fetch)
        record, device = load("stream-only", client, stored)
    assert record.link_down is not None
    assert record.streamed_bytes == device.chunks_placed * len(stored[0])
    assert record.wasted_bytes >= had[0]


@SYSTEMS_THAT_STREAM
def test_the_server_falls_silent_in_the_middle(folder: Path, stored: list[bytes], system: str) -> None:
    with ServerProcess(folder, LinkSpec(rate_bytes_per_s=BYTES_PER_S)) as server:

        def stop(chunks: int) -> bool:
            if chunks >= H:
                os.kill(server.process_id, signal.SIGSTOP)
            return False

        try:
            with CloudClient(server.url, timeout_s=0.5, attempts=2) as client:
                record, device = load(system, client, stored, stop)
        finally:
            os.kill(server.process_id, signal.SIGCONT)
    assert device.chunks_placed >= H
    assert record.units_computed > 0


@SYSTEMS_THAT_STREAM
@pytest.mark.parametrize("every_chunks", [1.5, 7])
def test_the_connection_is_cut_every_so_many_chunks(
    folder: Path, stored: list[bytes], system: str, every_chunks: float
) -> None:
    every_bytes = every_chunks * len(stored[0])

    def cut(number: int, so_far: int, data: bytes) -> bytes | None:
        return data if so_far + len(data) < every_bytes else None

    with (
        ServerProcess(folder, LinkSpec(rate_bytes_per_s=BYTES_PER_S)) as server,
        CloudClient(server.url) as direct,
        Proxy(server.url, cut) as proxy,
        CloudClient(proxy.url, timeout_s=1) as client,
    ):
        client._opened["0"] = direct._open("0")  # the index is longer than what comes through in one go
        record, device = load(system, client, stored)
    assert proxy.connections > device.chunks_placed / every_chunks
    # It is taken up again: the link is slow, and not down.
    assert record.link_down is None
    assert record.units_streamed == T * L if system == "stream-only" else device.chunks_placed


@SYSTEMS_THAT_STREAM
def test_a_chunk_is_damaged_on_the_way(folder: Path, stored: list[bytes], system: str) -> None:
    harmed: list[int] = []

    def flip(number: int, so_far: int, data: bytes) -> bytes:
        if so_far > 4 * len(stored[0]) and len(harmed) < 3:
            harmed.append(so_far)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    with (
        ServerProcess(folder, LinkSpec(rate_bytes_per_s=BYTES_PER_S)) as server,
        CloudClient(server.url) as direct,
        Proxy(server.url, flip) as proxy,
        CloudClient(proxy.url, timeout_s=1) as client,
    ):
        client._opened["0"] = direct._open("0")
        load(system, client, stored)
    assert harmed


@SYSTEMS_THAT_STREAM
def test_a_chunk_stays_damaged(folder: Path, stored: list[bytes], system: str, tmp_path: Path) -> None:
    """Damaged in the file, and so in every fetch. It is never put in place; the context is complete all the same."""
    with Store(folder / "0.kvs") as store:
        offset, length = store.index.extents(range(T * L * H), 0)[(T - 2) * L * H]
    data = bytearray((folder / "0.kvs").read_bytes())
    data[offset + length // 2] ^= 1
    (tmp_path / "0.kvs").write_bytes(data)
    with ServerProcess(tmp_path, LinkSpec(rate_bytes_per_s=BYTES_PER_S)) as server, CloudClient(server.url) as client:
        record, _ = load(system, client, stored)
    assert record.units_computed > 0


@SYSTEMS_THAT_STREAM
@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({"token": "open-sesame-43"}, "lets nobody in any more: needs the right token"),
        ({"path": "elsewhere"}, "no context '0' here"),
    ],
)
def test_the_server_comes_back_and_refuses(
    folder: Path, stored: list[bytes], system: str, after: dict[str, str], why: str, tmp_path: Path
) -> None:
    """What it has given stays, and what is missing is computed."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "1.kvs").write_bytes((folder / "0.kvs").read_bytes())
    with (
        ServerProcess(folder, LinkSpec(rate_bytes_per_s=BYTES_PER_S), token="open-sesame-42") as first,
        ServerProcess(elsewhere if "path" in after else folder, token=after.get("token", "open-sesame-42")) as second,
        Proxy(first.url, lambda number, so_far, data: data) as proxy,
        CloudClient(proxy.url, token="open-sesame-42") as client,
    ):

        def come_back(chunks: int) -> bool:
            if chunks >= H and proxy.target == first.url:
                proxy.target = second.url
                os.kill(first.process_id, signal.SIGKILL)
            return chunks >= H

        record, device = load(system, client, stored, come_back)
        assert H <= device.chunks_placed < T * L * H
        assert record.units_computed > 0
        assert record.link_down is not None and why in record.link_down
        # The next one has nothing but the processor, at once.
        record, device = load(system, client, stored)
        assert (record.units_streamed, record.units_computed) == (0, T * L)
        assert record.link_down is not None and why in record.link_down


def test_a_token_that_was_never_right_is_the_users_to_mend(folder: Path, stored: list[bytes]) -> None:
    with (
        ServerProcess(folder, token="open-sesame-42") as server,
        CloudClient(server.url, token="open-sesame-43") as client,
        pytest.raises(InputError, match="needs the right token"),
    ):
        load("ferry", client, stored)


@SYSTEMS_THAT_STREAM
def test_nobody_was_ever_there(folder: Path, stored: list[bytes], system: str) -> None:
    server = ServerProcess(folder)
    server.stop()
    with CloudClient(server.url, away_s=0.1) as client:
        record, device = load(system, client, stored)
    assert record.units_streamed == device.chunks_placed == 0
    assert record.units_computed == T * L
    assert record.link_down is not None and "refused" in record.link_down
