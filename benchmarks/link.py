"""The way from the cloud, beside a plain HTTP download of the same bytes.

The same server hands out the same 71 MB over the same link, once as one file to one plain connection, and once chunk by
chunk, all heads of a layer at a time, each checked, to the client that pipelines use. The plain download keeps what
comes, by `response.read()`, and so are the chunks kept; "dropped" reads piece by piece and keeps nothing, which spares
it new memory.
Pacing error: when each part of the bytes was there, against the integral of the trace; what is late includes the
client's own reading. Medians of some interleaved rounds, since other work on the machine moves all of them.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from benchmarks.row import Row, higher, lower
from kvferry.cloud.client import CloudClient
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import StoredModel, StoreHeader, StoreWriter
from kvferry.machine.ops import Chunks
from kvferry.specs.link import LinkSpec
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import link_trace

HEADS, LAYERS, TOKEN_CHUNKS = 8, 16, 4
# 1,024 tokens of 256 numbers at 4.2 bits.
CHUNK_BYTES = 138_000
TOTAL_BYTES = HEADS * LAYERS * TOKEN_CHUNKS * CHUNK_BYTES
ROUNDS = 5
WAYS = {"one plain download": 0, "the same, dropped": -1, "chunks, 1 ahead": 1, "2 ahead": 2, "8 ahead": 8}

LINKS: dict[str, LinkSpec | None] = {
    "as fast as it goes": None,
    "640 Mbit/s": LinkSpec(rate_bytes_per_s=80e6),
    "2 Gbit/s": LinkSpec(rate_bytes_per_s=250e6),
    "wifi-campus, RTT 4 ms": LinkSpec(trace="wifi-campus", rtt_s=0.004),
    "5g-midband, RTT 20 ms": LinkSpec(trace="5g-midband", rtt_s=0.02),
}

Arrivals = list[tuple[float, int]]


class Arriving(threading.Event):
    """Notes when how many bytes came."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self.moved: Callable[[float], None] = lambda n_bytes: arrivals.append((time.perf_counter(), int(n_bytes)))


def write_store(folder: Path) -> None:
    model = StoredModel(name="m", fingerprint="f", tokenizer="t", layers=LAYERS, kv_heads=HEADS, head_dim=128)
    header = StoreHeader.at_all_levels(model, [1024] * TOKEN_CHUNKS, "huffman")
    rng = np.random.default_rng(0)
    with StoreWriter(folder / "0.kvs", header, range(1024 * TOKEN_CHUNKS)) as writer:
        for t in range(TOKEN_CHUNKS):
            for l in range(LAYERS):
                for h in range(HEADS):
                    writer.put(t, l, h, rng.bytes(CHUNK_BYTES))


def plain(url: str, keep: bool) -> Arrivals:
    connection = HTTPConnection(url.removeprefix("http://"))
    arrivals: Arrivals = []
    connection.request("GET", "/contexts/0/file")
    response = connection.getresponse()
    while piece := response.read() if keep else response.read1(2**18):
        arrivals.append((time.perf_counter(), len(piece)))
    connection.close()
    return arrivals


def by_chunks(client: CloudClient, ahead: int) -> Arrivals:
    arrivals: Arrivals = []

    def fetch(unit: int) -> memoryview:
        ids = tuple(range(unit * HEADS, (unit + 1) * HEADS))
        return client.fetch(Chunks(0, ids, float(HEADS * CHUNK_BYTES)), 0, Arriving(arrivals))

    with ThreadPoolExecutor(ahead) as threads:
        kept = list(threads.map(fetch, range(LAYERS * TOKEN_CHUNKS)))
    assert sum(map(len, kept)) == TOTAL_BYTES
    return sorted(arrivals)


def used_s(process_id: int) -> float:
    with open(f"/proc/{process_id}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lateness_s(arrivals: Arrivals, began_s: float, trace: RateTrace, rtt_s: float) -> np.ndarray:
    came = np.cumsum([n_bytes for _, n_bytes in arrivals])
    due = np.array([trace.finish_s(0.0, float(n_bytes)) for n_bytes in came]) + rtt_s
    return np.array([at_s for at_s, _ in arrivals]) - began_s - due


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_store(folder)
        for label, link in LINKS.items():
            seen = {way: list[tuple[float, ...]]() for way in WAYS}
            for _ in range(ROUNDS):
                for way, ahead in WAYS.items():
                    seen[way].append(run(folder, link, ahead))
            plain_mb_per_s = TOTAL_BYTES / np.median([took_s for took_s, *_ in seen["one plain download"]]) / 1e6
            for way, runs in seen.items():
                took_s, late_s, here_s, there_s = np.median(runs, axis=0).tolist()
                yield higher(f"{label}, {way} (plain)", TOTAL_BYTES / took_s / 1e6, "MB/s", float(plain_mb_per_s))
                if link:
                    yield higher(f"{label}, {way}: of the link", link_share(link, took_s), "share", 1.0)
                # Kept as one, it is all there at the end.
                if link and way != "one plain download":
                    yield lower(f"{label}, {way}: late, p95", 1e3 * late_s, "ms")
                yield lower(f"{label}, {way}: processor here", 1e9 * here_s / TOTAL_BYTES, "ms/MB")
                yield lower(f"{label}, {way}: processor of the server", 1e9 * there_s / TOTAL_BYTES, "ms/MB")


def run(folder: Path, link: LinkSpec | None, ahead: int) -> tuple[float, ...]:
    """Seconds; 95th percentile of lateness; processor seconds here and of the server."""
    with ServerProcess(folder, link) as server, CloudClient(server.url) as client:
        client.index("0")
        used_there_s, used_here_s, began_s = used_s(server.process_id), time.process_time(), time.perf_counter()
        arrivals = by_chunks(client, ahead) if ahead > 0 else plain(server.url, keep=ahead == 0)
        took_s, here_s = time.perf_counter() - began_s, time.process_time() - used_here_s
        there_s = used_s(server.process_id) - used_there_s
    late = lateness_s(arrivals, began_s, link_trace(link), link.rtt_s) if link else np.zeros(1)
    return took_s, float(np.quantile(late, 0.95)), here_s, there_s


def link_share(link: LinkSpec, took_s: float) -> float:
    """Time that the link alone would have taken, over the time taken."""
    return (link_trace(link).finish_s(0.0, TOTAL_BYTES) + link.rtt_s) / took_s
