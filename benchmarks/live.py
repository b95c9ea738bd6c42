"""Speeds of the live machine, each beside its ceiling.

Round trips: work is handed to a thread and its result awaited. The ceiling is two threads that pass a token through
queues and do nothing else; the best of some interleaved rounds. Storage: random reads and writes in the
folder for temporary files (`TMPDIR`), beside bare loops of preadv and pwritev with the same block
size, as many threads, and no more than that; and beside fio, where it is installed, with io_uring and with threads.
Checksums: sums of all blocks of a request, beside a CRC-32 of each block and a copy.
All of them swing with whatever else the machine does: medians of some interleaved rounds.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np
import simpy

from benchmarks.row import Row, best_s, higher, lower
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.disk.block_sums import sums_of
from kvferry.disk.direct_storage import BLOCK_BYTES, Storage, aligned_memory
from kvferry.machine.ops import Extents, FeedForward, Op, Prefill
from kvferry.system.checksum import crc32

TRIPS = 20_000
ROUNDS = 5
FILE_BYTES = 512 << 20
# Bytes moved per measurement, by block size: some tenths of a second.
BLOCKS = {4 << 10: 32 << 20, 64 << 10: 128 << 20, 1 << 20: 256 << 20}
DEPTHS = (1, 4, 16)


# --- round trips -------------------------------------------------------------------------------------------------


class Nothing:
    """Ops that take no time, but for a Prefill: that keeps the interpreter busy for a second."""

    def run(self, op: Op, request: int | None, inputs: Any = ()) -> None:
        until_s = perf_counter() + isinstance(op, Prefill)
        while perf_counter() < until_s:
            pass


def ping_pong() -> float:
    there, back = SimpleQueue[Any](), SimpleQueue[Any]()

    def answer() -> None:
        while (token := there.get()) is not None:
            back.put(token)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    began_s = perf_counter()
    for i in range(1, TRIPS + 1):
        there.put(i)
        back.get(timeout=60)
    took_s = perf_counter() - began_s
    there.put(None)
    thread.join()
    return TRIPS / took_s


def environment() -> float:
    env = WallClockEnvironment()
    there = SimpleQueue[simpy.Event | None]()

    def answer() -> None:
        while (event := there.get()) is not None:
            env.post(event.succeed, None)

    def ask() -> simpy.events.ProcessGenerator:
        for _ in range(TRIPS):
            event = env.event()
            with env.lock:
                env.expect()
            there.put(event)
            yield event

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    took_s = timed(env, ask())
    there.put(None)
    thread.join()
    return TRIPS / took_s


def machine() -> float:
    def ask(machine: LiveMachine) -> simpy.events.ProcessGenerator:
        for _ in range(TRIPS):
            yield machine.submit(FeedForward(1))

    with LiveMachine("device", Nothing(), capacity_bytes=1) as live:
        return TRIPS / timed(live.env, ask(live))


def chain() -> float:
    """Handed over at once, each op after the one before: no thread waits for the environment in between."""

    def ask(machine: LiveMachine) -> simpy.events.ProcessGenerator:
        last = machine.submit(FeedForward(1))
        for _ in range(TRIPS - 1):
            last = machine.submit(FeedForward(1), after=(last,))
        yield last

    with LiveMachine("device", Nothing(), capacity_bytes=1) as live:
        return TRIPS / timed(live.env, ask(live))


def beside_busy_python() -> tuple[float, float]:
    """Round trips while another worker holds the interpreter whenever it may: how many, and the longest in seconds."""
    longest_s, trips = 0.0, 0

    def ask(machine: LiveMachine) -> simpy.events.ProcessGenerator:
        nonlocal longest_s, trips
        busy = machine.submit(Prefill(1, 0))
        while not busy.triggered:
            began_s = perf_counter()
            yield machine.submit(FeedForward(1), on="npu")
            longest_s = max(longest_s, perf_counter() - began_s)
            trips += 1

    with LiveMachine("device", Nothing(), capacity_bytes=1, others={"npu": Nothing()}) as live:
        took_s = timed(live.env, ask(live))
    return trips / took_s, longest_s


def timed(env: simpy.Environment, story: simpy.events.ProcessGenerator) -> float:
    began_s = perf_counter()
    env.run(until=env.process(story))
    return perf_counter() - began_s


def round_trips() -> Iterator[Row]:
    ways = {"queues alone": ping_pong, "environment": environment, "machine": machine, "machine, one chain": chain}
    best = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            best[name] = max(best[name], way())
    ceiling = best["queues alone"]
    for name, rate in best.items():
        yield higher(f"round trips, {name}", rate, "per second", ceiling)
    rate, longest_s = beside_busy_python()
    yield higher("round trips, beside busy Python", rate, "per second", ceiling)
    yield lower("the longest of them", 1e3 * longest_s, "ms")


# --- storage -----------------------------------------------------------------------------------------------------


def offsets(n_bytes: int, block_bytes: int, rng: np.random.Generator) -> list[int]:
    """Different blocks of the file, in random order."""
    picked = rng.permutation(FILE_BYTES // block_bytes)[: n_bytes // block_bytes]  # a multiple of 16 x depth
    return [int(i) * block_bytes for i in picked]


def ours(path: Path, depth: int, block_bytes: int, places: list[int], writing: bool) -> float:
    """In requests of 64 commands per place in the queue, or what they allow: a request ends before the next begins."""
    each = min(64 * depth, len(places))
    lengths = np.full(each, block_bytes)
    requests = [Extents(np.array(places[at : at + each]), lengths) for at in range(0, len(places), each)]
    data = aligned_memory(block_bytes * each)
    data[:] = bytes(len(data))  # nor shall its pages be new when they are written
    with Storage(path, writable=writing, depth=depth) as store:
        store.read(requests[0]).release()  # new memory costs, and is used again
        began_s = perf_counter()
        for extents in requests:
            if writing:
                store.write(extents, data)
            else:
                store.read(extents).release()
        took_s = perf_counter() - began_s
    return len(places) * block_bytes / took_s


def bare(path: Path, depth: int, block_bytes: int, places: list[int], writing: bool) -> float:
    """Threads that each move their share into one block of memory of their own."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    move: Callable[[int, tuple[memoryview], int], int] = os.pwritev if writing else os.preadv

    def share(mine: Iterator[int], memory: memoryview) -> None:
        for place in mine:
            move(fd, (memory,), place)

    threads = [
        threading.Thread(target=share, args=(iter(places[i::depth]), aligned_memory(block_bytes))) for i in range(depth)
    ]
    began_s = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = perf_counter() - began_s
    os.close(fd)
    return len(places) * block_bytes / took_s


def fio(path: Path, engine: str, depth: int, block_bytes: int, places: list[int], writing: bool) -> float | None:
    if shutil.which("fio") is None:
        return None
    n_bytes = len(places) * block_bytes
    command = ["fio", "--name=kvferry", f"--filename={path}", f"--size={FILE_BYTES}", f"--bs={block_bytes}"]
    command += [f"--rw={'randwrite' if writing else 'randread'}", "--direct=1", "--thread", "--group_reporting"]
    if engine == "threads":
        command += ["--ioengine=psync", f"--numjobs={depth}", f"--io_size={n_bytes // depth}"]
    else:
        command += [f"--ioengine={engine}", f"--iodepth={depth}", f"--io_size={n_bytes}"]
    command += ["--randrepeat=0", "--output-format=json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    bytes_per_s: float = json.loads(ran.stdout)["jobs"][0]["write" if writing else "read"]["bw_bytes"]
    return bytes_per_s


def storage(folder: Path) -> Iterator[Row]:
    """Nothing where the folder's file system has no direct reads and writes."""
    rng = np.random.default_rng(7)
    path = folder / f"kvferry-benchmark-{os.getpid()}"
    ways = {
        "threads": partial(ours, path),
        "bare": partial(bare, path),
        "fio io_uring": partial(fio, path, "io_uring"),
        "fio threads": partial(fio, path, "threads"),
    }
    try:
        with Storage.create(path, FILE_BYTES) as store:
            if store.note:
                return
            chunk = rng.bytes(1 << 24)
            for at in range(0, FILE_BYTES, len(chunk)):
                store.write(Extents((at,), (len(chunk),)), chunk)
        for writing in (False, True):
            for block_bytes, n_bytes in BLOCKS.items():
                for depth in DEPTHS:
                    seen: dict[str, list[float]] = {way: [] for way in ways}
                    for _ in range(ROUNDS):
                        for way, move in ways.items():
                            places = offsets(n_bytes, block_bytes, rng)
                            rate = move(depth, block_bytes, places, writing)
                            seen[way] += [] if rate is None else [rate / 1e6]
                    what = f"{'write' if writing else 'read'} {block_bytes >> 10} KiB, depth {depth}"
                    rates = {way: float(np.median(of_way)) for way, of_way in seen.items() if of_way}
                    for way, rate in rates.items():
                        ceiling = rates.get("fio threads") or rates["bare"]
                        yield higher(f"{what}: {way}", rate, "MB/s", ceiling if way == "threads" else None)
    finally:
        path.unlink(missing_ok=True)


def checksums() -> Iterator[Row]:
    for n_bytes in (256 << 10, 4 << 20, 64 << 20):
        memory, to = aligned_memory(n_bytes), np.zeros(n_bytes, np.uint8)
        memory[:] = np.random.default_rng(7).bytes(n_bytes)
        ways: dict[str, Callable[[], object]] = {
            "a copy": partial(np.copyto, to, np.frombuffer(memory, np.uint8)),
            "sums of blocks": partial(sums_of, memory),
            "crc32 of each": lambda of=memory: [
                crc32(of[at : at + BLOCK_BYTES]) for at in range(0, len(of), BLOCK_BYTES)
            ],
        }
        rates = {name: n_bytes / best_s(way) / 1e9 for name, way in ways.items()}
        for name, rate in rates.items():
            yield higher(f"{n_bytes >> 10:,} KiB: {name}", rate, "GB/s", rates["a copy"])


def rows() -> Iterator[Row]:
    yield from round_trips()
    yield from checksums()
    yield from storage(Path(tempfile.gettempdir()))
