"""The contract carries decoding too: a toy pipeline that keeps its KV on disk, on every backend."""

import simpy
from worlds import World, finish

from kvferry.machine.machine import Machine, Refused
from kvferry.machine.ops import DecodeAttention, Extents, FeedForward, Select
from kvferry.machine.ticket import Ticket

LAYERS, GROUPS, K, GROUP_BYTES = 3, 16, 4, 10


def decode(machine: Machine, steps: int, sizes: list[int]) -> simpy.events.ProcessGenerator:
    """Select the groups of the next layer while this one computes; read only what the buffer lacks."""
    lease = machine.memory.reserve(LAYERS * K * GROUP_BYTES, "kv")
    assert not isinstance(lease, Refused)
    buffer: list[set[int]] = [set() for _ in range(LAYERS)]
    for step in range(steps):
        done: tuple[Ticket, ...] = ()
        for layer in range(LAYERS):
            chosen = yield machine.submit(Select(batch=1, groups=GROUPS, k=K, step=step, layer=layer), after=done)
            wanted = set(chosen.ids.ravel().tolist())
            missing = sorted(wanted - buffer[layer])
            sizes.append(len(missing))
            buffer[layer] = wanted
            extents = Extents(tuple(g * GROUP_BYTES for g in missing), (GROUP_BYTES,) * len(missing))
            read = machine.read(extents, after=done)
            attended = machine.submit(DecodeAttention(batch=1, attended_tokens=K), after=(read,))
            fed = machine.submit(FeedForward(batch=1), after=(attended,))
            machine.write(Extents((step * GROUP_BYTES,), (GROUP_BYTES,)), after=(attended,))
            done = (fed,)
        yield done[0]
    lease.release()


def test_a_toy_decode_runs_to_its_end(world: World) -> None:
    sizes: list[int] = []
    env = world.machine.env
    finish(world, env.process(decode(world.machine, 3, sizes)))
    assert len(sizes) == 9
    assert sizes[:3] == [K, K, K]  # nothing is buffered at the first step
    assert world.machine.memory.peak_of("kv") == LAYERS * K * GROUP_BYTES
