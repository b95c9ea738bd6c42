"""Layers whose KV comes back to the processor's memory: attention waits until it is there."""

from dataclasses import dataclass

from fake_machine import FakeMachine
from tiny import unit_model

from kvferry.machine.ops import DecodeAttention, Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.placement import KvSize
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.selector import Everything
from kvferry.specs.tier import Tier


@dataclass(frozen=True)
class Returning:
    """All on storage until the second token was decoded, then all in the processor's memory."""

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        return ("device" if size.tokens > 4 else "storage",) * size.layers


class Watched(FakeMachine):
    """Notes what moves to the processor's memory, and attention."""

    def move(self, what, source, to, *, after=(), request=None):  # type: ignore[no-untyped-def]
        ticket = super().move(what, source, to, after=after, request=request)
        if to == "device":
            self.moves.append(ticket)
        return ticket

    def submit(self, op: Op, **more):  # type: ignore[no-untyped-def]
        ticket = super().submit(op, **more)
        if isinstance(op, DecodeAttention):
            self.attended.append(ticket)
        return ticket

    moves: list[Ticket]
    attended: list[Ticket]


def test_attention_waits_for_kv_that_its_placement_moves_back() -> None:
    machine = Watched(bytes_per_s=0.5)
    machine.moves, machine.attended = [], []
    roles = Roles(selector=Everything(), layout=TokenGroups(group_tokens=1), placement=Returning())
    model = unit_model(layers=2, kv_value_bytes=1.0)
    plan = plan_of(roles, model, sequences=1, context=4, output=3, budget_bytes=1e9)
    decode = LockStepDecode(machine, plan)
    machine.env.run(until=machine.env.process(decode.run(3)))
    # The second step has both layers moved back; each one's attention begins when its KV is there.
    moved, attended = machine.moves[-2:], machine.attended[-2:]
    for move, attention in zip(moved, attended, strict=True):
        assert move.end_s is not None
        assert attention.start_s is not None
        assert attention.start_s >= move.end_s
