"""The live Machine: ops on a real model, fetches from a real server, reads of a real disk."""

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack

from kvferry.backends.live.engine.display import LiveDisplay
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.link import FETCHES_AHEAD, Fetcher, LiveLink
from kvferry.backends.live.engine.storage import ByteStore, LiveStorage, Source
from kvferry.backends.live.engine.stream import Stream, queue_of
from kvferry.backends.live.engine.worker import Worker
from kvferry.machine.channel import Channel
from kvferry.machine.handling import Handling
from kvferry.machine.machine import Asked, Facts, Outside
from kvferry.machine.memory import BudgetedPool
from kvferry.machine.observed import observed
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


class Switchboard(Protocol):
    def open(self, name: str, peer: str) -> Channel: ...


# The last argument of the next two: the values of the tickets of `after`, in that order.
# Entropy-decodes fetched chunks.
Decode = Callable[[Decompress, int | None, Sequence[Any]], Any]
# Puts KV into a tier: decoded chunks into the session, for example.
Place = Callable[[Any, Tier, int | None, Sequence[Any]], Any]
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
    `host_bytes` of memory lie beside the device's; None: both are one. `access` is the modelled link that messages
    cross, once it is set. Use it in a `with` block: leaving it stops transfers and ends the threads.
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
        self.env, self.name = env or WallClockEnvironment(), name
        self.memory = LiveMemory(capacity_bytes)
        self._tiers: dict[Tier, LiveMemory] = {
            "device": self.memory,
            "host": self.memory if host_bytes is None else LiveMemory(host_bytes),
            "storage": LiveMemory(math.inf),
        }
        self._main, self._nominal_s = main, nominal_s
        self._decode, self._place, self._handler, self._switchboard = decode, place, handler, switchboard
        self.access: Access | None = None

        runners = {main: runner, **(others or {})}
        self._processors = {name: (queue_of(self.env, name, tell, stream), runners[name]) for name in runners}
        self._copies = queue_of(self.env, "copy", tell, stream)
        self._decompressor = Worker(self.env, "decompress", tell, decompress_workers)
        self.storage = LiveStorage(self.env, tell, storage, source)
        # Does what software does, beside all paths. Tells no spans: the modelled world has none for it.
        self.host = Worker(self.env, "host", lambda span: None)
        self._link = LiveLink(self.env, fetcher, tell, fetches_ahead) if fetcher else None

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        after, request, priority = asked.get("after", ()), asked.get("request"), asked.get("priority", 0)
        on, nominal_s = asked.get("on", "compute"), None
        if isinstance(op, Decompress):
            queue, run = self._decompressor, _needed(self._decode, "a decoder, to decompress what was fetched")
        else:
            queue, runner = pick("processor", self._processors, self._main if on == "compute" else on)
            run, nominal_s = runner.run, self._nominal_s(op) if self._nominal_s else None
        return queue.do(
            lambda inputs: run(op, request, inputs),
            after,
            priority,
            label=op.label,
            request=request,
            nominal_s=nominal_s,
        )

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        """The ticket fires with `Fetched`."""
        return _needed(self._link, "a fetcher, to fetch from the cloud").fetch(chunks, after, request)

    def read(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self.storage.read(extents, after, request)

    def write(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self.storage.write(extents, after, request)

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
        return self.host.do(lambda _: handler(handling, request))

    @property
    def outside(self) -> Outside:
        return self

    def display(self) -> LiveDisplay:
        return LiveDisplay(self.env)

    def open(self, peer: str) -> Channel:
        return _needed(self._switchboard, "a switchboard, to open channels").open(self.name, peer)

    def observe(self, window_s: float) -> Facts:
        # A machine that fetches nothing observes its messages.
        link = self._link or (None if self.access is None else self.access.down)
        with self.env.lock:
            return observed(self.env.now, window_s, self._processors[self._main][0], link, self.memory.free_bytes)

    def warm(self, call: Callable[[], None]) -> None:
        """Call `call` in the main processor's thread, then set the clock to 0. Nothing may have been submitted yet.
        Raises what the call raises."""
        self._processors[self._main][0].warm(call)
        self.env.restart()

    def close(self) -> None:
        """Stop transfers, begin no further work, and wait up to a second for work under way. The storage stays open."""
        workers = [*(queue for queue, _ in self._processors.values()), self._copies, self._decompressor]
        workers += [self.storage, self.host, *([self._link] if self._link else [])]
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
