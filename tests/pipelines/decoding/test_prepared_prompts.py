"""Systems that prepare the prompt alone and keep new tokens in memory, as SpeContext runs its baselines."""

from dataclasses import replace
from typing import Any

from decoding import buffer_bytes, metadata_bytes, roles_of
from fake_machine import FakeMachine
from tiny import tiny_model

from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.computing import Attend
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.policies.decode.attention_kernel import FLASH, IN_PLACE, PAGED
from kvferry.specs.tier import Tier

# 64 B for a token's KV in a layer: keys of 2 x 8 numbers of 2 B, and as many values.
MODEL = tiny_model()


def plan(slots: int, budget_bytes: float = 1e9) -> DecodePlan:
    roles = roles_of(
        "shadowkv",
        layout={"name": "value-groups", "group_tokens": 8, "compression": 4.0},
        selector={"name": "landmarks", "selected_tokens": 24, "per_head": True},
        residency={"name": "reuse", "slots": slots},
        upkeep="none",
        placement="host",
    )
    return plan_of(roles, MODEL, sequences=2, context=80, output=40, budget_bytes=budget_bytes)


def test_memory_of_shadowkv_by_hand() -> None:
    # Of the prompt alone: in 2 layers 10 landmarks of 16 numbers, and 80 keys of rank 4, of 2 B.
    assert metadata_bytes(plan(3)) == 2 * (10 * 32 + 80 * 8)
    # Values of 3 slots of 8 tokens in 2 layers, keys rebuilt in two buffers, and 40 new tokens in every layer.
    assert buffer_bytes(plan(3)) == 2 * 3 * 8 * 32 + 2 * 3 * 8 * 32 + 2 * 40 * 64
    assert buffer_bytes(plan(5)) == 2 * 5 * 8 * 32 + 2 * 3 * 8 * 32 + 2 * 40 * 64


def test_slots_that_hold_the_selection_alone_are_attended_to_where_they_lie() -> None:
    assert not Attend.op(plan(3), 24).gathered
    assert Attend.op(plan(5), 24).gathered
    # In the processor's own memory a selection lies scattered among all of the KV.
    assert Attend.op(plan(3), 24, away=False).gathered


class Counting(FakeMachine):
    """Notes the bytes of moves to the processor."""

    moved: list[int]

    def move(self, what: Extents, source: Tier, to: Tier, **more: Any) -> Ticket:
        if to == "device":
            self.moved.append(what.n_bytes)
        return super().move(what, source, to, **more)


def test_new_tokens_that_find_no_room_come_from_the_host_in_every_step_by_hand() -> None:
    whole = plan(3)
    assert whole.staying.newest_tokens is None
    # Room for all but 100 B: of 40 tokens of 2 x 64 B, the last one lies on the host.
    less = plan(3, whole.memory.sequence_bytes - 100)
    assert (less.staying.newest_tokens, less.memory.sequence_bytes) == (39, whole.memory.sequence_bytes - 128)
    two = replace(less, staying=replace(less.staying, newest_tokens=2))
    moved = {}
    for name, chosen in (("whole", whole), ("two", two)):
        machine = Counting(capacity_bytes=1e6)
        machine.moved = []
        decode = LockStepDecode(machine, chosen)
        machine.env.run(until=machine.env.process(decode.run(6)))
        moved[name] = machine.moved
    # In the five steps there are 0 to 4 new ones, of which two stay; two sequences, 64 B each.
    more = [b - a for a, b in zip(moved["whole"], moved["two"], strict=True)]
    assert more == [0, 0] * 3 + [128, 128] + [256, 256]


def test_a_paged_kernel_finds_a_selection_by_its_table() -> None:
    roles = replace(plan(5).roles, attention=PAGED)
    assert not Attend.op(replace(plan(5), roles=roles), 24).gathered


def test_quest_attends_in_place_over_its_pages() -> None:
    """Its kernel takes a table of pages: nothing is gathered first, and no copy of the KV is held."""
    own = roles_of("quest")
    assert own.attention.paged and not own.attention.needs_memory
    gathered = {}
    for kernel in (own.attention, IN_PLACE):
        chosen = plan_of(
            replace(own, attention=kernel), MODEL, sequences=2, context=320, output=8, budget_bytes=200_000
        )
        gathered[kernel] = Attend.op(chosen, 24).gathered
    assert gathered == {own.attention: False, IN_PLACE: True}


def test_a_tensor_that_grows_is_written_back_whole_by_hand() -> None:
    whole = roles_of("full-flashinfer", placement={"name": "all-or-nothing", "overflow": "host"})
    written = {}
    for kernel in (PAGED, FLASH):
        roles = replace(whole, attention=kernel)
        chosen = plan_of(roles, MODEL, sequences=2, context=32, output=8, budget_bytes=4500)
        machine = Writing(capacity_bytes=1e6)
        machine.written = 0
        decode = LockStepDecode(machine, chosen)
        machine.env.run(until=machine.env.process(decode.run(3)))
        written[kernel] = machine.written
    # In each of two steps both layers' 2 x 32 tokens of 64 B.
    assert written[FLASH] - written[PAGED] == 2 * 2 * 2 * 32 * 64


class Writing(FakeMachine):
    """Counts the bytes of moves from the processor."""

    written: int

    def move(self, what: Extents, source: Tier, to: Tier, **more: Any) -> Ticket:
        if source == "device":
            self.written += what.n_bytes
        return super().move(what, source, to, **more)
