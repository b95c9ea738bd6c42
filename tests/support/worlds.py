"""The backends that must keep the contract. A new one joins the list."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import simpy
from fake_machine import FakeMachine

from kvferry.backends.needs import Needs
from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.sim.op_answers import OpAnswers
from kvferry.backends.world import DEVICE, Inputs, Say, WholeWorld, described
from kvferry.machine.answers import Answer, Assigned, Selection
from kvferry.machine.machine import Machine
from kvferry.machine.ops import Assign, Chunks, Extents, Number, Op, Retrieve, Select, Selecting
from kvferry.machine.span import Tell
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.channel import Switchboard
from kvferry.sim.cost import Cost
from kvferry.sim.costs.cost_model import CostModel
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.link import LinkSpec
from kvferry.specs.machine import device_name
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec
from kvferry.traces.rate import RateTrace
from kvferry.traces.request import Request
from kvferry.traces.stored import StoredContext


@dataclass(frozen=True)
class World:
    """Two machines that know each other, and how many bytes take about as long as an op."""

    machine: Machine
    peer: Machine
    n_bytes: int
    capacity_bytes: float
    close: Callable[[], None] = lambda: None


def fake() -> World:
    first = FakeMachine("device")
    board = Switchboard(first.env)
    machine = FakeMachine(
        "device", env=first.env, switchboard=board, bytes_per_s=100.0, capacity_bytes=1000.0, unified=False
    )
    peer = FakeMachine("cloud", env=first.env, switchboard=board)
    return World(machine, peer, n_bytes=100, capacity_bytes=1000.0)


def sim() -> World:
    """A made-up device on which an op takes about a millisecond, as does moving 100 kB on any path."""
    device = load_device("tiny")
    rate = 1e8
    storage = StorageSpec(bytes_per_s=rate)
    memory = device.memory.model_copy(update={"unified": False, "copy_bytes_per_s": rate})
    device = device.model_copy(update={"storage": storage, "memory": memory})
    model = load_model("tiny")
    env = simpy.Environment()
    board = Switchboard(env)

    def machine(name: str) -> SimMachine:
        named = device.model_copy(update={"name": name})
        link = RateTrace.constant(rate)
        return SimMachine(
            named, model, link, costs=fixed_cost, answers=OpAnswers(shuffled, answered), env=env, switchboard=board
        )

    device_machine = machine("device")
    return World(device_machine, machine("cloud"), 100_000, device_machine.memory.capacity_bytes)


class FixedCost:
    """Every op takes a millisecond and moves nothing."""

    def cost(self, op: Op) -> Cost:
        return Cost(1e-3)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        return np.asarray(1e-3)


def fixed_cost(processor: ProcessorSpec, model: ModelSpec) -> CostModel:
    return FixedCost()


def shuffled(op: Selecting) -> Selection:
    order = np.random.default_rng((op.step, op.layer)).permutation(op.groups)[: op.k].astype(np.int32)
    return Selection(np.broadcast_to(order, (op.batch, op.heads, op.k)))


def answered(op: Op) -> Answer | None:
    """What a Select or an Assign op finds, the same for the same step and layer."""
    if isinstance(op, Select | Retrieve):
        return shuffled(op)
    if isinstance(op, Assign):
        drawn = np.random.default_rng((op.step, op.layer)).integers(op.centroids, size=(op.batch, op.heads))
        return Assigned(drawn.astype(np.int32), np.ones(drawn.shape))
    return None


def live(over_http: bool = False) -> World:
    """Threads, a local link, a storage file and sockets: an op takes 20 ms, as does moving 100 kB over the link."""
    # Imported here, as tests of another world need none of it.
    from kvferry.backends.live.engine.channel import SocketSwitchboard
    from kvferry.backends.live.engine.environment import WallClockEnvironment
    from kvferry.backends.live.engine.machine import LiveMachine, Switchboard
    from kvferry.backends.live.engine.thread_work import Moving
    from kvferry.backends.live.wire.caller import CallingSwitchboard, CloudAddress
    from kvferry.backends.live.wire.reception import Reception
    from kvferry.disk.direct_storage import Storage

    # Long beside what a busy system takes to wake a thread.
    op_s, n_bytes, capacity_bytes = 20e-3, 100_000, 1e6

    class Runner:
        def run(self, op: Op, request: int | None, inputs: object = ()) -> Answer | None:
            time.sleep(op_s)
            return answered(op)

    class Fetcher:
        """Twenty pieces in the time of an op, for every `n_bytes`."""

        def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes:
            pieces = round(20 * chunks.n_bytes / n_bytes)
            for _ in range(pieces):
                if moving.wait(op_s / 20):
                    break
                moving.moved(chunks.n_bytes / pieces)
            return bytes(int(chunks.n_bytes))

    def decode(*_: object) -> None:
        time.sleep(op_s)

    def source(extents: Extents, *_: object) -> bytes:
        return bytes(extents.n_bytes)

    # Its name is free as soon as it is open, and nothing is left behind.
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1 << 20)
        storage = Storage(file.name, writable=True, depth=2)
    folder = tempfile.TemporaryDirectory(prefix="kvferry-")
    env = WallClockEnvironment()

    def machine(name: str, board: Switchboard) -> LiveMachine:
        return LiveMachine(
            name,
            Runner(),
            capacity_bytes=capacity_bytes,
            host_bytes=capacity_bytes,
            fetcher=Fetcher(),
            decode=decode,
            storage=storage,
            source=source,
            switchboard=board,
            env=env,
        )

    if over_http:
        reception = Reception(env).begin()
        calling = CallingSwitchboard(env, CloudAddress(reception.url))
        boards = [calling, reception]
        device, cloud = machine("device", calling), machine("cloud", reception)
    else:
        board = SocketSwitchboard(env, folder.name)
        boards = [board]
        device, cloud = machine("device", board), machine("cloud", board)

    def close() -> None:
        for part in (device, cloud, *boards, storage):
            part.close()
        folder.cleanup()

    return World(device, cloud, n_bytes, capacity_bytes, close)


class OneRate:
    """A Carry: 10 ms, and 100 kB/s."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def __call__(self, sender: str, receiver: str, n_bytes: float) -> simpy.Event:
        return self._env.timeout(0.01 + n_bytes / 100e3)

    def stream(self, sender: str, receiver: str, n_bytes: float) -> None:
        return None

    def arrivals_s(self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float) -> Sequence[float]:
        return [time_s + 0.01 + n_bytes / 100e3 for time_s in sent_s]

    def expected_s(
        self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float, behind_s: float
    ) -> Sequence[float]:
        return self.arrivals_s(sender, receiver, sent_s, n_bytes)


class FakeWorld(WholeWorld):
    """A world of FakeMachines, whose messages cross at one rate."""

    link = RateTrace.constant(100e3)
    available = RateTrace.constant(1.0)
    weights_refused = None
    foresight = None
    keys = None
    may_skip = False

    def __init__(self, scenario: Scenario, needs: Needs, inputs: Inputs) -> None:
        env = simpy.Environment()
        carry = Switchboard(env, OneRate(env))
        names = [one.name for one in described(scenario, needs)]
        self.machines = {name: FakeMachine(name, env=env, switchboard=carry) for name in names}
        self.machine, self._given = self.machines[DEVICE], inputs
        self.arrived: list[Request] = []

    @property
    def crowd(self) -> Self:
        return self

    @property
    def devices(self) -> list[Machine]:
        return [self.machine]

    def device(self, n: int, link: LinkSpec | None = None) -> Machine:
        return self.machines[device_name(n)]

    def leave(self, n: int) -> None:
        pass

    @property
    def private(self) -> bool:
        return False

    def stays_j(self) -> dict[str, float]:
        return {}

    def stored(self, sequence: int) -> StoredContext:
        raise NotImplementedError

    def inputs(self) -> Inputs:
        return self._given

    def energy_j(self, until_s: float, machine: str = DEVICE) -> dict[str, float]:
        return {}

    def storage_utilisation(self, until_s: float) -> float:
        return 0.0

    def measured(self) -> dict[str, Any]:
        return {}


@contextmanager
def fake_world(scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[FakeWorld]:
    yield FakeWorld(scenario, needs, inputs)


def live_over_http() -> World:
    """As ``live``, with a channel over HTTP."""
    return live(over_http=True)


WORLDS: dict[str, Callable[[], World]] = {"fake": fake, "sim": sim, "live": live, "http": live_over_http}


def finish(world: World, *tickets: simpy.Event) -> None:
    world.machine.env.run(until=world.machine.env.all_of(tickets))
