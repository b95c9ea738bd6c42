"""Worker processes that encode and decode, since constriction and short numpy calls hold the interpreter's lock.

Bytes and arrays go through shared memory, two segments per worker; a pipe carries a line of JSON each way. A worker
that is killed is replaced, and its piece is tried once more.
"""

import json
import multiprocessing
import os
import queue
import resource
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.shared_memory import SharedMemory
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from kvferry.codecs import codec
from kvferry.codecs.codec import Buffer, DamagedChunk, KeysValues
from kvferry.specs.errors import InputError, KvferryError, MissingExtra
from kvferry.system.child_process import sheltered

# No piece takes longer, even on a slow phone: a worker that is silent for this long hangs. Where others keep the
# processor busy, it has a part of it, and that many times longer.
SILENCE_S = 60.0
# Spawned, not forked: the parent has threads, perhaps a GPU context, and files that a child must not inherit.
CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")


def patience_s() -> float:
    """Returns how long a worker may be silent now, by the load of this machine."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return SILENCE_S * max(1.0, load / (os.cpu_count() or 1))


_MOST_MESSAGE_BYTES = 2**20
_MOST_TASK_BYTES = 2**30
_ERRORS: dict[str, type[KvferryError]] = {kind.__name__: kind for kind in (DamagedChunk, InputError, MissingExtra)}

Result = TypeVar("Result")


class CodecWorkerDied(KvferryError):
    """Raised when a worker process ended or hung for a minute, and its replacement did so at the same piece."""


class CodecPool:
    """`workers` processes, started at once; pieces begin in the order in which they are handed over.

    Futures raise what `codec.encode` and `codec.decode_many` raise, or CodecWorkerDied. Use it as a context manager, or
    close it: pieces that have not begun are then cancelled.
    """

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"{workers} workers cannot do anything")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers = [_Worker() for _ in range(workers)]
        for worker in self._workers:
            self._idle.put(worker)
        # One thread stands for one worker: it copies, then waits without holding the interpreter.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="codec")
        self._close = weakref.finalize(self, _close, self._threads, self._workers)

    def decode(self, chunks: Sequence[Buffer], dtype: DTypeLike = np.float32) -> Future[list[KeysValues]]:
        """(keys, values) of each chunk, [tokens, head_dim], decoded together by one worker."""
        return self._threads.submit(self._with_a_worker, lambda worker: worker.decode(chunks, np.dtype(dtype)))

    def encode(self, name: str, k: np.ndarray, v: np.ndarray, level: int = 0, depth: float = 0.0) -> Future[bytes]:
        """One chunk's keys and values, [tokens, head_dim] each."""
        return self._threads.submit(self._with_a_worker, lambda worker: worker.encode(name, k, v, level, depth))

    @property
    def process_ids(self) -> list[int]:
        # A worker that is being started has no process yet; 0 would be the caller's own process group.
        return [worker.process_id for worker in self._workers if worker.process_id]

    def close(self) -> None:
        self._close()

    def __enter__(self) -> "CodecPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with_a_worker(self, piece: "Callable[[_Worker], Result]") -> Result:
        worker = self._idle.get()
        try:
            try:
                return piece(worker)
            except CodecWorkerDied:
                worker.restart()
            try:
                return piece(worker)
            except CodecWorkerDied:
                worker.restart()
                raise
        finally:
            self._idle.put(worker)


def _close(threads: ThreadPoolExecutor, workers: "list[_Worker]") -> None:
    threads.shutdown(wait=True, cancel_futures=True)
    for worker in workers:
        worker.close()


class _Worker:
    """A process and the two segments through which it gets and gives bytes; used by one thread at a time."""

    def __init__(self) -> None:
        self._source: SharedMemory | None = None
        self._target: SharedMemory | None = None
        self._start()

    def decode(self, chunks: Sequence[Buffer], dtype: np.dtype) -> list[KeysValues]:
        lengths = [len(chunk) for chunk in chunks]
        shapes = [codec.shape_of(chunk) for chunk in chunks]
        self._source = _at_least(self._source, sum(lengths))
        self._target = _at_least(self._target, sum(shape.values for shape in shapes) * dtype.itemsize)
        at, source = 0, _bytes_of(self._source)
        for chunk, length in zip(chunks, lengths, strict=True):
            source[at : at + length] = chunk
            at += length
        self._ask(do="decode", lengths=lengths, dtype=dtype.str)
        decoded, at = [], 0
        for shape in shapes:
            both = np.ndarray((2, shape.tokens, shape.head_dim), dtype, _bytes_of(self._target), at).copy()
            decoded.append((both[0], both[1]))
            at += both.nbytes
        return decoded

    def encode(self, name: str, k: np.ndarray, v: np.ndarray, level: int, depth: float) -> bytes:
        both = np.stack([k, v]).astype(np.float32, copy=False)
        self._source = _at_least(self._source, both.nbytes)
        # No codec takes more than 4 bytes per number, but for headers and tables.
        self._target = _at_least(self._target, both.nbytes + 2**16)
        np.ndarray(both.shape, np.float32, _bytes_of(self._source))[:] = both
        reply = self._ask(do="encode", codec=name, shape=both.shape, level=level, depth=depth)
        return bytes(_bytes_of(self._target)[: reply["length"]])

    @property
    def process_id(self) -> int:
        return int(self._process.pid or 0)

    def restart(self) -> None:
        self._stop()
        self._start()

    def close(self) -> None:
        self._stop()
        for segment in (self._source, self._target):
            _free(segment)
        self._source = self._target = None

    def _start(self) -> None:
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_work, args=(theirs,), name="kvferry-codec", daemon=True)
        with sheltered():
            # In a block of its own and first: starting the resource tracker lets Ctrl-C through again.
            resource_tracker.ensure_running()
        with sheltered(), _without_main():
            self._process.start()
        theirs.close()

    def _stop(self) -> None:
        self._connection.close()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, **task: Any) -> dict[str, Any]:
        assert self._source is not None and self._target is not None
        task |= {"source": self._source.name, "target": self._target.name}
        patience = patience_s()
        try:
            self._connection.send_bytes(json.dumps(task).encode())
            wait([self._connection, self._process.sentinel], patience)
            if not self._connection.poll():
                raise EOFError
            reply = json.loads(self._connection.recv_bytes(_MOST_MESSAGE_BYTES))
        except (EOFError, OSError):
            raise CodecWorkerDied(
                f"codec worker {self.process_id} {self._end(patience)} while it was to {task['do']}"
            ) from None
        if "error" in reply:
            raise _ERRORS.get(reply["error"], KvferryError)(reply["text"])
        return dict(reply)

    def _end(self, patience: float) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return f"was silent for {patience:.0f} s"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes spawned in this block do not run the main module again: a user's script without a guard would start
    itself over and over, and a test runner costs more than the worker's own imports."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _at_least(segment: SharedMemory | None, n_bytes: int) -> SharedMemory:
    """The segment if it is large enough, else a new one that replaces it."""
    if segment is not None and segment.size >= n_bytes:
        return segment
    if n_bytes > _MOST_TASK_BYTES:
        raise InputError(f"{n_bytes:,} bytes at once; a codec worker takes at most {_MOST_TASK_BYTES:,}")
    # /dev/shm is small in most containers; writing beyond its end would kill the process without a message.
    shared = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    if shared is not None and shared.f_bavail * shared.f_frsize < n_bytes:
        raise KvferryError(f"/dev/shm has no room for the {n_bytes:,} bytes that a codec worker needs; enlarge it")
    size = max(n_bytes, 2**16)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if resource.RLIM_INFINITY != most < size:
        raise KvferryError(f"files have at most {most:,} bytes (ulimit -f); a codec worker's memory needs {size:,}")
    _free(segment)
    return SharedMemory(create=True, size=size)


def _bytes_of(segment: SharedMemory) -> memoryview:
    assert segment.buf is not None  # it is open
    return segment.buf


def _free(segment: SharedMemory | None) -> None:
    if segment is not None:
        segment.close()
        segment.unlink()


# --- in the worker's process ---------------------------------------------------------------------------------------


def _work(connection: Connection) -> None:
    segments: dict[str, SharedMemory] = {}
    while True:
        try:
            task = json.loads(connection.recv_bytes(_MOST_MESSAGE_BYTES))
        except (EOFError, OSError):
            return
        for role in ("source", "target"):
            if role not in segments or segments[role].name != task[role]:
                if role in segments:
                    segments[role].close()
                segments[role] = SharedMemory(task[role])
        try:
            reply = _DO[task["do"]](task, *map(_bytes_of, (segments["source"], segments["target"])))
        except Exception as error:
            reply = {"error": type(error).__name__, "text": str(error)}
        connection.send_bytes(json.dumps(reply).encode())


def _decode(task: dict[str, Any], source: memoryview, target: memoryview) -> dict[str, Any]:
    ends = np.cumsum(task["lengths"]).tolist()
    chunks = [bytes(source[end - length : end]) for end, length in zip(ends, task["lengths"], strict=True)]
    at = 0
    for both in codec.decode_many(chunks, np.dtype(task["dtype"])):
        for values in both:
            np.ndarray(values.shape, values.dtype, target, at)[:] = values
            at += values.nbytes
    return {}


def _encode(task: dict[str, Any], source: memoryview, target: memoryview) -> dict[str, Any]:
    k, v = np.ndarray(task["shape"], np.float32, source)
    data = codec.encode(task["codec"], k, v, task["level"], task["depth"])
    target[: len(data)] = data
    return {"length": len(data)}


_DO: dict[str, Callable[[dict[str, Any], memoryview, memoryview], dict[str, Any]]] = {
    "decode": _decode,
    "encode": _encode,
}
