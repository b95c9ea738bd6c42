"""The protocol that pipelines are written against, and that every backend keeps (tests/contract)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict, Unpack

import simpy

from kvferry.machine.channel import Channel
from kvferry.machine.display import Display
from kvferry.machine.handling import Handling
from kvferry.machine.ops import Chunks, Extents, KvRef, Op
from kvferry.machine.ticket import Ticket
from kvferry.specs.human import size
from kvferry.specs.tier import Tier


class Facts(NamedTuple):
    """What a machine observed of itself over the last `window_s` seconds."""

    now_s: float
    window_s: float
    # Bytes per second that the link delivered while it was busy; None when it was idle throughout.
    goodput_bytes_per_s: float | None
    link_utilisation: float
    compute_utilisation: float
    # Nominal over actual duration of the ops that ended in the window: 1 on an idle device, less under
    # background load; None if no op ended.
    compute_speed: float | None
    compute_queue: int
    link_queue: int
    free_bytes: float
    # What the main processor still takes to start, were it asked for an op now.
    starting_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A reservation that does not fit, and why."""

    tag: str
    wanted_bytes: float
    free_bytes: float

    def __str__(self) -> str:
        missing = math.ceil(self.wanted_bytes - self.free_bytes)
        return (
            f"{self.tag} needs {size(self.wanted_bytes)}, {size(self.free_bytes)} are free:"
            f" {size(missing)} ({missing:,} bytes) are missing"
        )


class Lease(Protocol):
    """Memory that is held until released; releasing twice is harmless."""

    n_bytes: float
    tag: str

    def release(self) -> None: ...


class MemoryPool(Protocol):
    """A budget. A tag is the name of a holding (policies/ledger.py)."""

    capacity_bytes: float

    @property
    def used_bytes(self) -> float: ...

    @property
    def peak_bytes(self) -> float: ...

    def peak_of(self, tag: str) -> float: ...

    @property
    def at_peak(self) -> Mapping[str, float]: ...

    def hold(self, n_bytes: Mapping[str, float]) -> Refused | None: ...

    def reserve(self, n_bytes: float, tag: str) -> Lease | Refused: ...


class Asked(TypedDict, total=False):
    """How an op is to be run. ``after``: the tickets that must have fired before. ``on``: the main processor's queue
    "compute", which is where it runs without this key, "decompress", or a processor by name. ``priority``: a lower
    number overtakes; 0 without this key. ``request``: marks the spans."""

    after: Iterable[Ticket]
    on: str
    priority: int
    request: int | None


class Paths(Protocol):
    """What moves KV between a machine's tiers, leg by leg (machine/tiers.py)."""

    def read(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket: ...

    def write(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket: ...

    def copy(
        self, kv: KvRef | Extents, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        """Move KV between the tiers "host" and "device". Free on unified memory."""
        ...


class Outside(Protocol):
    """A machine to others: to machines that it talks with, to a user, and to software beside its queues."""

    @property
    def name(self) -> str:
        """By which other machines open channels to it."""
        ...

    def open(self, peer: str) -> Channel: ...

    def display(self) -> Display:
        """A new display, for one answer."""
        ...

    def handle(self, handling: Handling, *, request: int | None = None) -> simpy.Event:
        """Have software do something for a request, beside all queues; fires with what it answers."""
        ...


class Machine(Protocol):
    """One device, in virtual or wall time. Every request returns a Ticket at once.

    `after` names the tickets that must have fired before the work starts. `request` marks the spans.
    Work on one queue runs in the order in which it was submitted, unless a lower `priority` number overtakes it.
    The compute and copy queues, the decompressor, each link flow and storage run in parallel.
    """

    env: simpy.Environment

    @property
    def memory(self) -> MemoryPool:
        """The processor's."""
        ...

    def memory_of(self, tier: Tier) -> MemoryPool:
        """A tier's own budget; on unified memory, host and device have one together."""
        ...

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        """Run an op."""
        ...

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        """Move chunks from the cloud into host memory. One request's fetches are one flow, delivered in
        order; flows share the link fairly."""
        ...

    def move(
        self,
        what: KvRef | Extents,
        source: Tier,
        to: Tier,
        *,
        after: Iterable[Ticket] = (),
        request: int | None = None,
    ) -> Ticket:
        """Move KV from one tier to another, by what reads, writes and copies that takes (machine/tiers.py). Within a
        tier nothing moves; a KvRef moves between host and device."""
        ...

    def observe(self, window_s: float) -> Facts: ...

    @property
    def outside(self) -> Outside:
        """What it is to others."""
        ...
