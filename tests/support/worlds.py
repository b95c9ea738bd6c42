"""The backends that must keep the contract. A new one joins the list."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy

from kvferry.backends.fake import FakeMachine
from kvferry.backends.sim.machine import SimMachine
from kvferry.machine.machine import Machine
from kvferry.machine.ops import Assign, Assigned, Chunks, Extents, Number, Op, Retrieve, Select, Selecting, Selection
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.access import Accesses
from kvferry.sim.channel import Switchboard
from kvferry.sim.cost import Cost
from kvferry.sim.costs.cost_model import CostModel
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.storage import StorageSpec
from kvferry.traces.rate import RateTrace


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
            named, model, link, costs=fixed_cost, selections=shuffled, assignments=nearest, env=env, switchboard=board
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


def shuffled(op: Selecting) -> np.ndarray:
    order = np.random.default_rng((op.step, op.layer)).permutation(op.groups)[: op.k].astype(np.int32)
    return np.broadcast_to(order, (op.batch, op.heads, op.k))


def nearest(op: Assign) -> np.ndarray:
    drawn = np.random.default_rng((op.step, op.layer)).integers(op.centroids, size=(op.batch, op.heads))
    return drawn.astype(np.int32)


def live() -> World:
    """Threads, a local link, a storage file and sockets: an op takes 20 ms, as does moving 100 kB over the link."""
    # Imported here, as tests of another world need none of it.
    from kvferry.backends.live.engine.channel import SocketSwitchboard
    from kvferry.backends.live.engine.environment import WallClockEnvironment
    from kvferry.backends.live.engine.machine import LiveMachine
    from kvferry.backends.live.engine.thread_work import Moving
    from kvferry.disk.direct_storage import Storage

    # Long beside what a busy system takes to wake a thread.
    op_s, n_bytes, capacity_bytes = 20e-3, 100_000, 1e6

    class Runner:
        def run(self, op: Op, request: int | None, inputs: object = ()) -> Selection | Assigned | None:
            time.sleep(op_s)
            if isinstance(op, Assign):
                return Assigned(nearest(op))
            return Selection(shuffled(op)) if isinstance(op, Select | Retrieve) else None

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

    def machine(name: str) -> LiveMachine:
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

    board = SocketSwitchboard(env, folder.name)
    device, cloud = machine("device"), machine("cloud")

    def close() -> None:
        for part in (device, cloud, board, storage):
            part.close()
        folder.cleanup()

    return World(device, cloud, n_bytes, capacity_bytes, close)


@dataclass(frozen=True)
class Party:
    """Several devices of one profile and a cloud that know each other; None: bytes take what they really take."""

    devices: dict[str, Machine]
    cloud: Machine
    bytes_per_s: float | None
    close: Callable[[], None] = lambda: None


NAMES = ("phone_a", "phone_b", "phone_c")


def fake_party() -> Party:
    env, rate = simpy.Environment(), 100.0
    board = Switchboard(env, lambda sender, receiver, n_bytes: env.timeout(n_bytes / rate))
    made = {name: FakeMachine(name, env=env, switchboard=board) for name in (*NAMES, "cloud")}
    return Party({name: made[name] for name in NAMES}, made["cloud"], rate)


def sim_party() -> Party:
    env, rate = simpy.Environment(), 1e4
    device, model = load_device("tiny"), load_model("tiny")
    accesses = Accesses(env)
    board = Switchboard(env, accesses)
    made = {}
    for name in (*NAMES, "cloud"):
        link = RateTrace.constant(rate)
        machine = SimMachine(device, model, link, name=name, rtt_s=0.01, costs=fixed_cost, env=env, switchboard=board)
        made[name] = machine
        if name in NAMES:
            accesses.connect(name, machine.access)
    return Party({name: made[name] for name in NAMES}, made["cloud"], rate)


def live_party() -> Party:
    from kvferry.backends.live.engine.channel import SocketSwitchboard
    from kvferry.backends.live.engine.environment import WallClockEnvironment
    from kvferry.backends.live.engine.machine import LiveMachine

    class Idle:
        def run(self, op: Op, request: int | None, inputs: object = ()) -> None:
            return None

    folder = tempfile.TemporaryDirectory(prefix="kvferry-")
    env = WallClockEnvironment()
    board = SocketSwitchboard(env, folder.name)
    made = {
        name: LiveMachine(name, Idle(), capacity_bytes=1e6, switchboard=board, env=env) for name in (*NAMES, "cloud")
    }

    def close() -> None:
        for machine in made.values():
            machine.close()
        board.close()
        folder.cleanup()

    return Party({name: made[name] for name in NAMES}, made["cloud"], None, close)


PARTIES: dict[str, Callable[[], Party]] = {"fake": fake_party, "sim": sim_party, "live": live_party}
WORLDS: dict[str, Callable[[], World]] = {"fake": fake, "sim": sim, "live": live}


def finish(world: World, *tickets: simpy.Event) -> None:
    world.machine.env.run(until=world.machine.env.all_of(tickets))
