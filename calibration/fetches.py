"""The cost of a fetch on the device itself: the chunk server on loopback, and the client that live runs use."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from kvferry.backends.live.engine.link import FETCHES_AHEAD
from kvferry.calibration.measurement import Measurement, repeated
from kvferry.calibration.settings import Settings
from kvferry.calibration.task import Task
from kvferry.cloud.client import CloudClient
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import StoredModel, StoreHeader, StoreWriter
from kvferry.machine.ops import Chunks

STORE = "link-probe"
HEADS, LAYERS = 4, 16
CHUNK_BYTES, SMALL_BYTES = 2**17, 64
# Fetches under way at once, as in the live machine.
_AHEAD = FETCHES_AHEAD


class Uncounted(threading.Event):
    """A transfer whose bytes are not counted, and which is never cancelled."""

    def moved(self, n_bytes: float) -> None:
        pass


def tasks(settings: Settings, folder: Path) -> Iterator[Task]:
    yield Task("link", lambda: fetches(settings, folder))


def fetches(settings: Settings, folder: Path) -> list[Measurement]:
    with ServerProcess(probe_store(folder)) as server, client_of(server) as client:

        def small() -> list[float]:
            seconds = []
            for n in range(20):
                began_s = perf_counter()
                client.fetch(unit(n % LAYERS, large=False), None, Uncounted())
                seconds.append(perf_counter() - began_s)
            return seconds

        def large() -> list[float]:
            began_s = perf_counter()
            with ThreadPoolExecutor(_AHEAD) as threads:
                list(threads.map(lambda l: client.fetch(unit(l), None, Uncounted()), range(LAYERS)))
            return [LAYERS * HEADS * CHUNK_BYTES / (perf_counter() - began_s)]

        requests = repeated(small, least=40, seconds=settings.point_s / settings.passes)
        rates = repeated(large, least=3, seconds=settings.point_s / settings.passes)
    return [
        Measurement(what="request", unit="s", values=requests, at={"bytes": float(HEADS * SMALL_BYTES)}),
        Measurement(what="receive", unit="byte/s", values=rates, at={"bytes": float(HEADS * CHUNK_BYTES)}),
    ]


def client_of(server: ServerProcess) -> CloudClient:
    """A client of the probe, which knows its index already."""
    client = CloudClient(server.url, names=lambda sequence: STORE)
    client.index(STORE)
    return client


def unit(l: int, *, large: bool = True) -> Chunks:
    """All heads of one layer of the probe, from its token chunk of large chunks or that of small ones."""
    first = ((0 if large else 1) * LAYERS + l) * HEADS
    ids = tuple(range(first, first + HEADS))
    return Chunks(0, ids, float(HEADS * (CHUNK_BYTES if large else SMALL_BYTES)))


def probe_store(folder: Path) -> Path:
    """A store of bytes drawn at random, made once."""
    path = folder / f"{STORE}.kvs"
    if not path.exists():
        model = StoredModel(
            name="probe", fingerprint="none", tokenizer="none", layers=LAYERS, kv_heads=HEADS, head_dim=1
        )
        header = StoreHeader.at_all_levels(model, [1, 1], "fp16")
        with StoreWriter(path, header, [0, 0]) as writer:
            for t, n_bytes in enumerate((CHUNK_BYTES, SMALL_BYTES)):
                for l in range(LAYERS):
                    for h in range(HEADS):
                        writer.put(t, l, h, os.urandom(n_bytes))
    return path
