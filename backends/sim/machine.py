"""The modelled world as a Machine: virtual time, modelled costs, a replayed link."""

import copy
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import simpy

from kvferry.machine.answers import Answer, Selection
from kvferry.machine.channel import Channel
from kvferry.machine.handling import Forget, Handling
from kvferry.machine.machine import Facts, Outside
from kvferry.machine.memory import BudgetedPool
from kvferry.machine.ops import Chunks, DecodeAttention, Decompress, Extents, KvRef, Op, Selecting
from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.tiers import moved
from kvferry.sim.access import Access, Late, access_over
from kvferry.sim.bus import MemoryBus
from kvferry.sim.channel import Switchboard
from kvferry.sim.contention import Contention
from kvferry.sim.costs.cost_model import Builder
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.display import SimDisplay
from kvferry.sim.energy import EnergyMeter
from kvferry.sim.foresight import Foresight
from kvferry.sim.heat import Heat
from kvferry.sim.paged_storage import PagedStorage
from kvferry.sim.processor import Processor
from kvferry.sim.slowed_queue import CopyQueue, Decompressor
from kvferry.sim.storage import Storage
from kvferry.sim.storage_curve import CurveStorage
from kvferry.sim.storage_models import storage_of
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.storage import StorageSpec
from kvferry.specs.tier import Tier
from kvferry.traces.cluster_answers import Clusters, OfClusters
from kvferry.traces.critical_tokens import CriticalTokens
from kvferry.traces.rate import RateTrace


class Answers(Protocol):
    """Answers to ops that choose, as SimMachine takes them."""

    @property
    def selections(self) -> Callable[[Selecting], Selection] | None: ...
    @property
    def clusters(self) -> Clusters | None: ...
    @property
    def attended(self) -> Callable[[DecodeAttention], None] | None: ...


class SimMachine:
    """A device with its link, in virtual time; None: it has none. Weights are in memory from the start, or all that is
    `held` by name.

    `name` is this instance's, by which peers open channels to it; devices of one profile have different ones.

    `access`: its way to the network, where it shares it with others; None: `link`, which is its own.

    `weights_refused` says why they are not, when the model does not fit: nothing should be run then. `load` is the
    background load of processors by name. `selections` answers Select and Retrieve ops from a recorded or generated
    stream, or by keys, `clusters` answers ops on clusters of keys, and `attended` is called with each attention op; the
    processor alone says how long they take. `mapped`: the KV's file is mapped into memory, its size and what of it may
    be there. The main processor starts to load its graph when anything is first asked of the machine.
    """

    def __init__(
        self,
        device: DeviceSpec,
        model: ModelSpec,
        link: RateTrace | None,
        *,
        name: str | None = None,
        rtt_s: float = 0.0,
        late: Late | None = None,
        uplink: RateTrace | None = None,
        access: Access | None = None,
        costs: Builder,
        load: Mapping[str, RateTrace] | None = None,
        memory_bytes: float | None = None,
        held: Mapping[str, float] | None = None,
        selections: Callable[[Selecting], Selection] | None = None,
        clusters: Clusters | None = None,
        attended: Callable[[DecodeAttention], None] | None = None,
        mapped: tuple[float, float] | None = None,
        tell: Tell = lambda span: None,
        env: simpy.Environment | None = None,
        switchboard: Switchboard | None = None,
    ) -> None:
        self.env = env or simpy.Environment()
        self.name = name or device.name
        self.device, self.model = device, model
        memory = device.memory
        self.memory = BudgetedPool(memory_bytes or memory.capacity_bytes - memory.reserved_bytes)
        self._tiers: dict[Tier, BudgetedPool] = {
            "device": self.memory,
            "host": self.memory if memory.unified else BudgetedPool(_or_endless(memory.host_capacity_bytes)),
            "storage": BudgetedPool(_or_endless(device.storage.capacity_bytes if device.storage else 0.0)),
        }
        self.weights_refused = self.memory.hold(held or {"weights": model.weight_bytes})
        self.access = access
        if access is None and link is not None:
            self.access = access_over(self.env, link, uplink, rtt_s, device.network, tell, late)
        # What fetches come over, and messages to it.
        self.link = None if self.access is None else self.access.down
        mean_bytes_per_s = 0.0 if self.link is None else self.link.trace.mean()
        slowdown = device.slowdown_at(mean_bytes_per_s)
        contention = Contention(slowdown) if device.contention else None
        self._slowdown, self._loaded = slowdown, bool(load)
        bus = MemoryBus(memory.bytes_per_s) if memory.unified else None
        self.heat = None if device.heat is None else Heat(device.heat, self._drawn_j)
        self.processors = {
            name: Processor(
                self.env,
                name,
                spec,
                # A cost model may need what only the main processor's profile describes.
                (costs if name == device.main else Roofline)(spec, model).cost,
                (load or {}).get(name),
                bus,
                tell,
                contention,
                self.heat,
            )
            for name, spec in device.processors.items()
        }
        self._main = self.processors[device.main]
        self.decompressor = Decompressor(self.env, device.decompressor, tell, contention)
        # On unified memory there is nothing to copy: a queue that takes no time and tells nothing.
        self._copies = (
            CopyQueue(self.env, math.inf, 0.0, lambda span: None)
            if memory.copy_bytes_per_s is None
            else CopyQueue(
                self.env,
                memory.copy_bytes_per_s,
                memory.copy_latency_s,
                tell,
                contention=contention,
                gathered=memory.gathered,
            )
        )
        self.storage = _storage(self.env, device.storage, tell, mapped, contention)
        if contention is not None:
            for path in (*self.processors.values(), self.decompressor, self._copies, self.storage):
                if path is not None:
                    contention.watch(path.resource, path.busy)
            if self.link is not None:
                contention.watch("link", self.link.busy)
        self._switchboard = switchboard or Switchboard(self.env)
        self._tell = tell
        self._selections, self._clusters, self._attended = selections, clusters, attended
        self.energy = self._energy_meter()
        self._nothing = simpy.Event(self.env)
        self._nothing._ok, self._nothing._value, self._nothing.callbacks = True, None, None

    def _energy_meter(self) -> EnergyMeter:
        meter = EnergyMeter(self.device.base_w)
        storing = None if self.storage is None else self.storage.busy
        for name, spec in self.device.processors.items():
            # Only the processor that a run computes on has threads that wait.
            waiting_w = spec.waiting_w if name == self.device.main else None
            busy = self.processors[name].busy
            work_s = None if self.heat is None else self.heat.work_s
            meter.add(name, spec.idle_w, spec.active_w, busy, waiting_w=waiting_w, waits_for=storing, work_s=work_s)
        meter.add("decompress", 0.0, self.device.decompressor.active_w, self.decompressor.busy)
        if self.storage is not None and self.storage.spec.active_w is not None:
            meter.add("storage", self.storage.spec.idle_w, self.storage.spec.active_w, self.storage.busy)
        network = self.device.network
        ways = () if self.access is None else (self.access.down.busy, self.access.up.busy)
        meter.add("network", network.idle_w, network.active_w, *ways)
        return meter

    def _drawn_j(self, from_s: float, until_s: float) -> float:
        return sum(self.energy.energy_j(until_s, from_s).values())

    @property
    def foresight(self) -> Foresight | None:
        """What decoding steps with KV on storage can be calculated from. None where something else may slow the main
        processor or the storage, such as heat, or where nothing is selected."""
        stream = self._selections
        if (
            self._loaded
            or self.heat is not None
            or not self.device.memory.unified
            or not isinstance(self.storage, CurveStorage)
        ):
            return None
        if stream is None and self._clusters is None:
            return None
        chosen = stream.at if isinstance(stream, CriticalTokens) else None
        main = self.device.main
        beside, reads_beside = (
            1 / self._slowdown.get(path, {}).get(other, 1.0) for path, other in ((main, "storage"), ("storage", main))
        )
        return Foresight(self._answer, chosen, self._main, self.storage, beside, reads_beside)

    def answering(self, parts: "Answers") -> "SimMachine":
        """Returns the same machine to one who has answers of their own to ops that choose."""
        same = copy.copy(self)
        same._selections, same._clusters, same._attended = parts.selections, parts.clusters, parts.attended
        return same

    def go_on(self, noted: Sequence[Span], since_s: float, seconds: float) -> Generator[simpy.Event, Any, None]:
        """A SimPy process of `seconds`, in which all goes on as in the time since `since_s`, whose spans are `noted`.
        There is one span of each label, one behind the other; when a resource is busy, on which energy depends, is
        stretched from that time."""
        from_s, queues = self.env.now, (*self.processors.values(), self._copies, self.storage)
        if from_s <= since_s or seconds <= 0:
            return
        times = seconds / (from_s - since_s)
        parts: dict[tuple[str, str], tuple[float, float]] = {}
        for resource, label, start_s, end_s, n_bytes, _ in noted:
            busy_s, moved = parts.get((resource, label), (0.0, 0.0))
            parts[resource, label] = busy_s + end_s - max(start_s, since_s), moved + n_bytes
        busy = [(one, list(one.busy.intervals(since_s, from_s))) for one in queues if one is not None]
        yield self.env.timeout(seconds)
        begin_s = dict.fromkeys((resource for resource, _ in parts), from_s)
        for (resource, label), (busy_s, n_bytes) in parts.items():
            end_s = begin_s[resource] + busy_s * times
            self._tell(Span(resource, label, begin_s[resource], end_s, n_bytes * times, None))
            begin_s[resource] = end_s
        for one, intervals in busy:
            for since, until in intervals:
                one.busy.add(from_s + (since - since_s) * times, from_s + (until - since_s) * times)

    def submit(
        self,
        op: Op,
        *,
        after: Iterable[Ticket] = (),
        on: str = "compute",
        priority: int = 0,
        request: int | None = None,
    ) -> Ticket:
        if isinstance(op, Decompress):
            return self.decompressor.decompress(op.values, after, priority, op.label, request)
        main = self._main
        main.start()
        processor = main if on == "compute" else self.processors[on]
        return processor.submit(op, after, priority, op.label, request, self._answer(op))

    def _answer(self, op: Op) -> Answer | None:
        if self._clusters is not None and isinstance(op, OfClusters):
            return self._clusters(op)
        if op.answer is None:
            if self._attended is not None and isinstance(op, DecodeAttention):
                self._attended(op)
            return None
        if not isinstance(op, Selecting) or self._selections is None:
            what = f"a stream of {op.answer.stream}, recorded or generated"
            raise InputError(f"a {op.label} op needs {what}; this run has none")
        return self._selections(op)

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        if self.link is None:
            raise InputError(f"machine {self.name} has no link to fetch over; give it a `link`")
        self._main.start()
        return self.link.transfer(request, chunks.n_bytes, after, "Fetch", request)

    def read(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._needed_storage().read(extents, after, request)

    def write(self, extents: Extents, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._needed_storage().write(extents, after, request)

    def _needed_storage(self) -> Storage | PagedStorage:
        if self.storage is None:
            raise InputError(f"device {self.device.name} has no storage; its profile needs a `storage`")
        self._main.start()
        return self.storage

    def copy(
        self, kv: KvRef | Extents, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        ranges = len(kv) if isinstance(kv, Extents) else 1
        return self._copies.copy(kv.n_bytes, after, label="Copy", request=request, ranges=ranges)

    def move(
        self, what: KvRef | Extents, source: Tier, to: Tier, *, after: Iterable[Ticket] = (), request: int | None = None
    ) -> Ticket:
        return moved(self, what, source, to, after, request, through_host=not self.device.memory.unified)

    def memory_of(self, tier: Tier) -> BudgetedPool:
        return self._tiers[tier]

    def handle(self, handling: Handling, *, request: int | None = None) -> simpy.Event:
        if type(handling) is Forget:
            # A modelled machine keeps nothing of a request, and the event is never waited for.
            return self._nothing
        return self.env.timeout(handling.seconds, handling.expects)

    @property
    def outside(self) -> Outside:
        return self

    def display(self) -> SimDisplay:
        return SimDisplay(self.env)

    def open(self, peer: str) -> Channel:
        self._main.start()
        return self._switchboard.open(self.name, peer)

    def observe(self, window_s: float) -> Facts:
        main, link = self._main, self.link
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
            starting_s=main.starting_s,
        )


def _storage(
    env: simpy.Environment,
    spec: StorageSpec | None,
    tell: Tell,
    mapped: tuple[float, float] | None,
    contention: Contention | None,
) -> Storage | PagedStorage | None:
    if spec is None:
        return None
    if mapped is None:
        return storage_of(env, spec, tell, contention)
    file_bytes, most_bytes = mapped
    return PagedStorage(env, spec, tell, file_bytes=file_bytes, most_bytes=most_bytes)


def _or_endless(capacity_bytes: float | None) -> float:
    return math.inf if capacity_bytes is None else capacity_bytes
