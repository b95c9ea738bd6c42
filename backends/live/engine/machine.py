"""The live Machine: ops on a real model, fetches from a real server, reads of a real disk."""

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack, runtime_checkable

from kvferry.backends.live.engine.display import LiveDisplay
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.link import FETCHES_AHEAD, Fetcher, LiveLink
from kvferry.backends.live.engine.stream import Stream, StreamWorker
from kvferry.backends.live.engine.worker import Worker
from kvferry.disk.direct_storage import Data
from kvferry.machine.busy import Busy
from kvferry.machine.channel import Channel
from kvferry.machine.handling import Handling
from kvferry.machine.machine import Asked, Facts, Outside
from kvferry.machine.memory import BudgetedPool
from kvferry.machine.ops import Chunks, Decompress, Extents, KvRef, Op
from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.tiers import moved
from kvferry.sim.access import Access
from kvferry.specs.errors import InputError, pick
from kvferry.specs.tier import Tier


class LiveMemory(BudgetedPool):
    """Grants and refuses reservations as the simulator does. What the process really holds is reported, not limited."""

    def resident_bytes(self) -> int | None:
        """Bytes of this process in memory; None where the system does not report them."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def device_bytes(self) -> int | None:
        """Bytes that the CUDA allocator has given out in this process; None where CUDA is not in use."""
        torch = sys.modules.get("torch")  # this must not import it
        if torch is None or not torch.cuda.is_initialized():
            return None
        return int(torch.cuda.memory_allocated())


# A thread that comes back from a kernel waits this long for the interpreter while another one has it. Python's own 5 ms
# are as much as an op takes.
_SWITCH_INTERVAL_S = 1e-4


class OpRunner(Protocol):
    """Carries out ops, on a model session for example. One thread calls it."""

    def run(self, op: Op, request: int | None, inputs: Sequence[Any]) -> Any:
        """Carry out an op, and return the value of its ticket. `inputs` are the values of the tickets of `after`."""
        ...


class ByteStore(Protocol):
    """A file of bytes, read and written by one thread."""

    def read(self, extents: Extents) -> Data: ...
    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None: ...


@runtime_checkable
class LikeDevice(ByteStore, Protocol):
    """A file that stands for another device, whose blocks are larger than its own."""

    def write(self, extents: Extents, data: bytes | bytearray | memoryview, *, parts_read: bool = False) -> None: ...
    def read_first(self, extents: Extents) -> Extents | None: ...
    def device_bytes(self, extents: Extents) -> int: ...


class Switchboard(Protocol):
    def open(self, name: str, peer: str) -> Channel: ...


# The last argument of the next three: the values of the tickets of `after`, in that order.
# Entropy-decodes fetched chunks.
Decode = Callable[[Decompress, int | None, Sequence[Any]], Any]
# Puts KV into a tier: decoded chunks into the session, for example.
Place = Callable[[Any, Tier, int | None, Sequence[Any]], Any]
# Returns the bytes that a write writes.
Source = Callable[[Extents, int | None, Sequence[Any]], bytes | bytearray | memoryview]
# Does what software does for a request, and returns what that answers.
Handler = Callable[[Handling, int | None], Any]


def passed_on(_what: object, _to: object, _request: int | None, inputs: Sequence[Any]) -> Any:
    """Returns the first input unchanged."""
    return inputs[0] if inputs else None


class LiveMachine:
    """A device in wall-clock time. Each path (processors, copies, decompression, storage, link) has its own threads.

    A request for a path whose part is absent (`fetcher`, `decode`, `storage`, `source`) raises InputError. `main` is
    the processor's name in spans; `others` are further processors by name. `nominal_s` returns how long an op takes on
    the idle device, None where that is not known; with it, `compute_speed` is known. `stream` returns the stream of a
    processor or of the copy path by its name, on a device that keeps order by itself (CUDA); None: threads do the work.
    `host_bytes` of memory lie beside the device's; None: both are one.
    `access` is the modelled link that messages cross, once it is set.

    Use it in a `with` block: leaving it stops transfers and ends the threads.
    """

    def __init__(
        self,
        name: str,
        runner: OpRunner,
        *,
        capacity_bytes: float,
        host_bytes: float | None = None,
        fetcher: Fetcher | None = None,
        fetches_ahead: int = FETCHES_AHEAD,
        decode: Decode | None = None,
        decompress_workers: int = 1,
        place: Place = passed_on,
        storage: ByteStore | None = None,
        source: Source | None = None,
        handler: Handler | None = None,
        main: str = "cpu",
        others: Mapping[str, OpRunner] | None = None,
        nominal_s: Callable[[Op], float | None] | None = None,
        stream: Callable[[str], Stream] | None = None,
        switchboard: Switchboard | None = None,
        tell: Tell = lambda span: None,
        env: WallClockEnvironment | None = None,
    ) -> None:
        self.env = env or WallClockEnvironment()
        self.name = name
        self.memory = LiveMemory(capacity_bytes)
        self._tiers: dict[Tier, LiveMemory] = {
            "device": self.memory,
            "host": self.memory if host_bytes is None else LiveMemory(host_bytes),
            "storage": LiveMemory(math.inf),
        }
        self.storage = storage
        self._runners = {main: runner, **(others or {})}
        self._main = main
        self._decode, self._place, self._source = decode, place, source
        self._nominal_s = nominal_s
        self._handler = handler
        self._switchboard = switchboard
        self.access: Access | None = None

        def queue(resource: str) -> Worker:
            if stream is None:
                return Worker(self.env, resource, tell)
            return StreamWorker(self.env, resource, tell, stream(resource))

        self._processors = {processor: queue(processor) for processor in self._runners}
        self._copies = queue("copy")
        self._decompressor = Worker(self.env, "decompress", tell, decompress_workers)
        self._storing = Worker(self.env, "storage", tell)
        # Tells no spans: the modelled world has none for it.
        self._handling = Worker(self.env, "host", lambda span: None)
        self._link = LiveLink(self.env, fetcher, tell, fetches_ahead) if fetcher else None

    @property
    def storage_busy(self) -> Busy:
        """When storage was busy."""
        return self._storing.busy

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        after, request, priority = asked.get("after", ()), asked.get("request"), asked.get("priority", 0)
        on = asked.get("on", "compute")
        if isinstance(op, Decompress):
            decode = _needed(self._decode, "a decoder, to decompress what was fetched")
            return self._decompressor.do(
                lambda inputs: decode(op, request, inputs), after, priority, label=op.label, request=request
            )
        processor = self._main if on == "compute" else on
        runner = pick("processor", self._runners, processor)
        return self._processors[processor].do(
            lambda inputs: runner.run(op, request, inputs),
            after,
            priority,
            label=op.label,
            request=request,
            nominal_s=self._nominal_s(op) if self._nominal_s else None,
        )

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        """The ticket fires with `Fetched`."""
        return _needed(self._link, "a fetcher, to fetch from the cloud").fetch(chunks, after, request)

    def read(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        """The ticket fires with storage's `Data`."""
        storage = _needed(self.storage, "a storage file")
        return self._store(lambda _: storage.read(extents), "Read", extents, after, request)

    def write(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        storage = _needed(self.storage, "a storage file")
        source = _needed(self._source, "a source, of what is to be written")

        if not isinstance(storage, LikeDevice):
            return self._store(
                lambda inputs: storage.write(extents, source(extents, request, inputs)),
                "Write",
                extents,
                after,
                request,
            )
        device, after = storage, tuple(after)
        if (parts := device.read_first(extents)) is not None:
            # One thread serves the storage, so that the write comes behind it.
            self._store(lambda _: device.read(parts).release(), "Read", parts, after, request)

        def call(inputs: Sequence[Any]) -> None:
            device.write(extents, source(extents, request, inputs), parts_read=True)

        return self._store(call, "Write", extents, after, request)

    def _store(
        self,
        call: Callable[[Sequence[Any]], Any],
        label: str,
        extents: Extents,
        after: Iterable[Ticket],
        request: int | None,
    ) -> Ticket:
        n_bytes = self.storage.device_bytes(extents) if isinstance(self.storage, LikeDevice) else extents.n_bytes
        return self._storing.do(call, after, n_bytes=n_bytes, label=label, request=request)

    def behind_storage(self, call: Callable[[], None]) -> Ticket:
        """Calls `call` in the storage's thread, once all is done that storage was asked for before."""
        return self._storing.do(lambda _: call(), label="Note")

    def beside(self, call: Callable[[], Any]) -> Ticket:
        """Calls `call` in a thread beside all paths, one after the other; no span tells of it."""
        return self._handling.do(lambda _: call())

    def copy(
        self, kv: KvRef | Extents, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        place = self._place
        return self._copies.do(
            lambda inputs: place(kv, to, request, inputs), after, n_bytes=kv.n_bytes, label="Copy", request=request
        )

    def move(
        self, what: KvRef | Extents, source: Tier, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        if isinstance(what, KvRef):
            return self.copy(what, to, after=after, request=request)
        if source == "storage" and to == "host":
            return self.copy(what, to, after=(self.read(what, after=after, request=request),), request=request)
        if source == "host" and to == "storage":
            # Through the processor's memory, from where it is written.
            brought = Extents(what.offsets, what.lengths)
            after = (self.copy(brought, "device", after=after, request=request),)
        # An op takes what was read to its device itself.
        return moved(self, what, source, to, after, request, through_host=False)

    def memory_of(self, tier: Tier) -> LiveMemory:
        return self._tiers[tier]

    def handle(self, handling: Handling, *, request: int | None = None) -> Ticket:
        handler = _needed(self._handler, "a handler, of what software does for a request")
        return self._handling.do(lambda _: handler(handling, request))

    @property
    def outside(self) -> Outside:
        return self

    def display(self) -> LiveDisplay:
        return LiveDisplay(self.env)

    def open(self, peer: str) -> Channel:
        return _needed(self._switchboard, "a switchboard, to open channels").open(self.name, peer)

    def observe(self, window_s: float) -> Facts:
        main = self._processors[self._main]
        # A machine that fetches nothing observes its messages.
        link = self._link or (self.access and self.access.down)
        with self.env.lock:
            goodput_bytes_per_s, link_utilisation = link.observe(window_s) if link else (None, 0.0)
            return Facts(
                now_s=self.env.now,
                window_s=window_s,
                goodput_bytes_per_s=goodput_bytes_per_s,
                link_utilisation=link_utilisation,
                compute_utilisation=main.utilisation(window_s),
                compute_speed=main.speed(window_s),
                compute_queue=main.queued,
                link_queue=link.queued if link else 0,
                free_bytes=self.memory.free_bytes,
            )

    def warm(self, call: Callable[[], None]) -> None:
        """Call `call` in the main processor's thread, then set the clock to 0. Nothing may have been submitted yet.
        Raises what the call raises."""
        self._processors[self._main].warm(call)
        self.env.restart()

    def close(self) -> None:
        """Stop transfers, begin no further work, and wait up to a second for work under way. The storage stays open."""
        workers = [*self._processors.values(), self._copies, self._decompressor, self._storing, self._handling]
        workers += [self._link] if self._link else []
        for worker in workers:
            worker.stop()
        until_s = self.env.now + 1.0
        for worker in workers:
            worker.join(until_s)

    def __enter__(self) -> "LiveMachine":
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        sys.setswitchinterval(self._switch_interval_s)


def _needed(part: Any, what: str) -> Any:
    if part is None:
        raise InputError(f"this machine was made without {what}")
    return part
