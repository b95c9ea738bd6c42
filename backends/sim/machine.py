"""The modelled world as a Machine: virtual time, modelled costs, a replayed link."""

import copy
import math
from collections.abc import Iterable, Mapping

import simpy

from kvferry.backends.sim.hardware import Hardware, Queue
from kvferry.backends.sim.op_answers import NO_ANSWERS, OpAnswers
from kvferry.machine.channel import Channel
from kvferry.machine.handling import Forget, Handling
from kvferry.machine.machine import Facts, Outside
from kvferry.machine.memory import BudgetedPool
from kvferry.machine.observed import observed
from kvferry.machine.ops import Chunks, Decompress, Extents, KvRef, Op
from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.tiers import moved
from kvferry.sim.access import Access, Late, access_over
from kvferry.sim.channel import Switchboard
from kvferry.sim.costs.cost_model import Builder
from kvferry.sim.display import SimDisplay
from kvferry.sim.foresight import Foresight
from kvferry.sim.paged_storage import PagedStorage
from kvferry.sim.storage import Storage
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.tier import Tier
from kvferry.traces.rate import RateTrace


class SimMachine:
    """A device with its link, in virtual time; None: it has none. Weights are in memory from the start, or all that is
    `held` by name.

    `name` is this instance's, by which peers open channels to it; devices of one profile have different ones.
    `access`: its way to the network, where it shares it with others; None: `link`, which is its own.
    `weights_refused` says why they are not, when the model does not fit: nothing should be run then. `load` is the
    background load of processors by name. `mapped`: the KV's file is mapped into memory, its size and what of it may be
    there. The main processor starts to load its graph when anything is first asked of the machine.
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
        answers: OpAnswers = NO_ANSWERS,
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
        self._hardware = hardware = Hardware(self.env, device, model, costs, self.access, load or {}, mapped, tell)
        self.processors, self._main, self.storage = hardware.processors, hardware.main, hardware.storage
        self.heat, self.energy = hardware.heat, hardware.energy
        self._switchboard, self._answers = switchboard or Switchboard(self.env), answers
        self._nothing = simpy.Event(self.env)
        self._nothing._ok, self._nothing._value, self._nothing.callbacks = True, None, None

    @property
    def foresight(self) -> Foresight | None:
        return self._hardware.foresight(self._answers)

    @property
    def queues(self) -> tuple[Queue, ...]:
        """Returns what work of a decoding step waits for."""
        return self._hardware.queues

    def answering(self, answers: OpAnswers) -> "SimMachine":
        """Returns the same machine with other answers to ops that choose."""
        same = copy.copy(self)
        same._answers = answers
        return same

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
            return self._hardware.decompressor.decompress(op.values, after, priority, op.label, request)
        main = self._main
        main.start()
        processor = main if on == "compute" else self.processors[on]
        return processor.submit(op, after, priority, op.label, request, self._answers.of(op))

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
        return self._hardware.copies.copy(kv.n_bytes, after, label="Copy", request=request, ranges=ranges)

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
        main = self._main
        return observed(self.env.now, window_s, main, self.link, self.memory.free_bytes, main.starting_s)


def _or_endless(capacity_bytes: float | None) -> float:
    return math.inf if capacity_bytes is None else capacity_bytes
