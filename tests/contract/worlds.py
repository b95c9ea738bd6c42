"""The backends that must keep the contract. A new one joins the list."""

from collections.abc import Callable
from dataclasses import dataclass

from kvferry.backends.fake import FakeMachine
from kvferry.machine.machine import Machine
from kvferry.sim.channel import Switchboard


@dataclass(frozen=True)
class World:
    """Two machines that know each other, and how many bytes take about as long as an op."""

    machine: Machine
    peer: Machine
    n_bytes: int
    capacity_bytes: float


def fake() -> World:
    first = FakeMachine("device")
    board = Switchboard(first.env)
    machine = FakeMachine("device", env=first.env, switchboard=board, bytes_per_s=100.0, capacity_bytes=1000.0)
    peer = FakeMachine("cloud", env=first.env, switchboard=board)
    return World(machine, peer, n_bytes=100, capacity_bytes=1000.0)


WORLDS: dict[str, Callable[[], World]] = {"fake": fake}
