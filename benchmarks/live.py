"""Speeds of the live machine, each beside its ceiling.

python benchmarks/live.py [FOLDER]

Round trips: work is handed to a thread and its result awaited. The ceiling is two threads that pass a token through
queues and do nothing else; the best of some interleaved rounds. Storage: random reads and writes in FOLDER (default:
the system's folder for temporary files) with both engines, beside bare loops of preadv and pwritev with the same block
size, as many threads, and no more than that; and beside fio, where it is installed, with io_uring and with threads.
Checksums: sums of all blocks of a request, beside a CRC-32 of each block and a copy.
All of them swing with whatever else the machine does: medians of some interleaved rounds.
"""

import json
import math
import os
import shutil
import subprocess
import sys
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

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.storage.block_sums import sums_of
from kvferry.backends.live.storage.direct_storage import BLOCK_BYTES, Storage, aligned_memory
from kvferry.machine.ops import Extents, FeedForward, Op, Prefill
from kvferry.specs.errors import InputError
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
    """Handed over at once, each op after the one before: threads need nobody in between."""

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


def round_trips() -> None:
    ways = {"queues alone": ping_pong, "environment": environment, "machine": machine, "machine, one chain": chain}
    best = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            best[name] = max(best[name], way())
    print(f"{'round trips':24} {'per second':>12}   of queues alone")
    for name, rate in best.items():
        print(f"{name:24} {rate:12,.0f}   {rate / best['queues alone']:6.0%}")
    rate, longest_s = beside_busy_python()
    print(f"{'beside busy Python':24} {rate:12,.0f}   {rate / best['queues alone']:6.0%}   longest {longest_s:.1e} s")


# --- storage -----------------------------------------------------------------------------------------------------


def offsets(n_bytes: int, block_bytes: int, rng: np.random.Generator) -> list[int]:
    """Different blocks of the file, in random order."""
    picked = rng.permutation(FILE_BYTES // block_bytes)[: n_bytes // block_bytes]  # a multiple of 16 x depth
    return [int(i) * block_bytes for i in picked]


def ours(path: Path, engine: str, depth: int, block_bytes: int, places: list[int], writing: bool) -> float | None:
    """In requests of 64 commands per place in the queue, or what they allow: a request ends before the next begins."""
    each = min(64 * depth, len(places))
    lengths = np.full(each, block_bytes)
    requests = [Extents(np.array(places[at : at + each]), lengths) for at in range(0, len(places), each)]
    data = aligned_memory(block_bytes * each)
    data[:] = bytes(len(data))  # nor shall its pages be new when they are written
    try:
        store = Storage(path, writable=writing, depth=depth, engine=engine)
    except InputError:
        return None  # no io_uring here
    with store:
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


def storage(folder: Path) -> None:
    rng = np.random.default_rng(7)
    path = folder / f"kvferry-benchmark-{os.getpid()}"
    ways = {
        "io_uring": partial(ours, path, "io_uring"),
        "threads": partial(ours, path, "threads"),
        "bare": partial(bare, path),
        "fio io_uring": partial(fio, path, "io_uring"),
        "fio threads": partial(fio, path, "threads"),
    }
    try:
        with Storage.create(path, FILE_BYTES) as store:
            if store.note:
                print(f"storage: {store.note}")
                return
            chunk = rng.bytes(1 << 24)
            for at in range(0, FILE_BYTES, len(chunk)):
                store.write(Extents((at,), (len(chunk),)), chunk)
        print(f"\n{'storage, MB/s':16} {'block':>8} {'depth':>5}" + "".join(f"{way:>14}" for way in ways), end="")
        print("   of fio: io_uring  threads")
        for writing in (False, True):
            for block_bytes, n_bytes in BLOCKS.items():
                for depth in DEPTHS:
                    seen: dict[str, list[float]] = {way: [] for way in ways}
                    for _ in range(ROUNDS):
                        for way, move in ways.items():
                            places = offsets(n_bytes, block_bytes, rng)
                            seen[way].append(move(depth, block_bytes, places, writing) or math.nan)
                    rates = {way: float(np.median(of_way)) for way, of_way in seen.items()}
                    print(
                        f"{'random write' if writing else 'random read':16} {block_bytes >> 10:4d} KiB {depth:5d}"
                        + "".join(f"{rate / 1e6:14.0f}" for rate in rates.values())
                        + f"{rates['io_uring'] / rates['fio io_uring']:20.0%}"
                        + f"{rates['threads'] / rates['fio threads']:9.0%}"
                    )
    finally:
        path.unlink(missing_ok=True)


def checksums() -> None:
    print(f"\n{'checksums, GB/s':16}" + "".join(f"{way:>16}" for way in ("sums of blocks", "crc32 of each", "copy")))
    for n_bytes in (256 << 10, 4 << 20, 64 << 20):
        memory, to = aligned_memory(n_bytes), np.zeros(n_bytes, np.uint8)
        memory[:] = np.random.default_rng(7).bytes(n_bytes)
        ways: list[Callable[[], object]] = [
            partial(sums_of, memory),
            lambda of=memory: [crc32(of[at : at + BLOCK_BYTES]) for at in range(0, len(of), BLOCK_BYTES)],
            partial(np.copyto, to, np.frombuffer(memory, np.uint8)),
        ]
        took_s: list[list[float]] = [[] for _ in ways]
        for _ in range(ROUNDS):
            for times_s, way in zip(took_s, ways, strict=True):
                began_s = perf_counter()
                way()
                times_s.append(perf_counter() - began_s)
        print(f"{n_bytes >> 10:12d} KiB" + "".join(f"{n_bytes / np.median(s) / 1e9:16.1f}" for s in took_s))


if __name__ == "__main__":
    round_trips()
    checksums()
    storage(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()))
