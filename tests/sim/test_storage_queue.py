"""Batches of commands on a flash device in the modelled world, and the two storage models side by side."""

import itertools
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ROUND_FLASH as ROUND

from kvferry.machine.ops import Extents
from kvferry.machine.span import Span
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.sim.flash import Flash
from kvferry.sim.storage import commands_of
from kvferry.sim.storage_curve import CurveStorage
from kvferry.sim.storage_queue import QueueStorage
from kvferry.specs.storage import FlashSpec, MapSpec, StorageSpec

KIB = 1024
# A 4 KiB read alone.
ALONE_S = 63e-6


def spec(flash: FlashSpec = ROUND, **changes: Any) -> StorageSpec:
    """Of lengths that are round in tens: any byte begins a storage block."""
    sizes = {"model": "queue", "queue": flash, "duplex": "full", "block_bytes": 1}
    return StorageSpec.model_validate({**sizes, **changes})


class World:
    def __init__(self, spec: StorageSpec) -> None:
        self.env = simpy.Environment()
        self.spans: list[Span] = []
        self.storage = QueueStorage(self.env, spec, self.spans.append)

    def at(self, time_s: float, do: Any) -> None:
        self.env.timeout(time_s).callbacks.append(lambda _: do())

    def ends_s(self, *tickets: Ticket) -> list[float | None]:
        self.env.run()
        assert self.storage.queued == 0
        self.storage.flash.check()
        return [ticket.end_s for ticket in tickets]


def pages(*numbers: int) -> Extents:
    """4 KiB at the beginning of these pages."""
    return Extents(np.array(numbers) * 16 * KIB, np.full(len(numbers), 4 * KIB))


def test_a_batch_takes_its_commands_through_the_device() -> None:
    world = World(spec())
    ticket = world.storage.read(pages(0), request=3)
    nothing = world.storage.read(Extents((), ()))
    assert world.ends_s(ticket, nothing) == pytest.approx([ALONE_S, 0.0])
    assert [(span.label, span.n_bytes, span.request) for span in world.spans] == [("Read", 0, None), ("Read", 4096, 3)]
    assert world.storage.busy.busy_s(0.0, 1.0) == pytest.approx(ALONE_S)


def test_extents_that_lie_against_each_other_are_one_command() -> None:
    world = World(spec())
    ticket = world.storage.read(Extents((4 * KIB, 0), (4 * KIB, 4 * KIB)))
    # one of 8 KiB: 4 us more on the channel, 2 more on the bus
    assert world.ends_s(ticket) == pytest.approx([ALONE_S + 6e-6])


def test_commands_of_several_batches_are_under_way_together() -> None:
    world = World(spec())
    tickets = [world.storage.read(pages(number)) for number in range(4)]
    assert world.ends_s(*tickets) == pytest.approx([ALONE_S, ALONE_S + 2e-6, ALONE_S + 4e-6, ALONE_S + 6e-6])
    assert all(ticket.start_s == 0.0 for ticket in tickets)
    world = World(spec(queue_depth=1))
    tickets = [world.storage.read(pages(number)) for number in range(3)]
    assert world.ends_s(*tickets) == pytest.approx([ALONE_S, 2 * ALONE_S, 3 * ALONE_S])
    assert tickets[2].start_s == pytest.approx(2 * ALONE_S)


def test_what_comes_later_changes_what_was_foreseen() -> None:
    # The second read of the same page comes while the first is sensed, and ends 50 us after it.
    world = World(spec())
    tickets = [world.storage.read(pages(0))]
    world.at(20e-6, lambda: tickets.append(world.storage.read(pages(0))))
    world.ends_s()
    assert [ticket.end_s for ticket in tickets] == pytest.approx([ALONE_S, ALONE_S + 50e-6])


def test_what_waits_for_other_work_holds_up_what_is_behind_it() -> None:
    world = World(spec())
    gate = Ticket(world.env)
    waiting = world.storage.write(pages(0), after=(gate,))
    behind = world.storage.read(pages(1))
    world.at(1.0, lambda: gate.settle(None, 0.0, 1.0))
    waiting_s, behind_s = world.ends_s(waiting, behind)
    assert waiting_s == pytest.approx(1.0 + 63e-6)
    assert behind_s == pytest.approx(1.0 + 2e-6 + ALONE_S)


def test_a_batch_under_way_can_be_cancelled() -> None:
    world = World(spec(queue_depth=1))
    ticket, behind = world.storage.read(pages(0, 1, 2)), world.storage.read(pages(3))
    world.env.run(until=100e-6)
    # one command has ended, the second is under way and keeps the device until 126 us
    assert ticket.cancel() == 4 * KIB
    assert isinstance(ticket.value, Cancelled)
    assert world.ends_s(ticket, behind) == pytest.approx([100e-6, 126e-6 + ALONE_S])
    assert [span.n_bytes for span in world.spans] == [4 * KIB, 4 * KIB]
    assert ticket.cancel() == 0.0


def test_the_map_costs_the_controller_time_once_accesses_spread() -> None:
    world = World(spec(map=MapSpec(covers_bytes=1e6, miss_s=8e-6)))
    near = world.storage.read(Extents((0,), (4 * KIB,)))
    world.env.run()
    far = world.storage.read(Extents((4_000_000 - 4 * KIB,), (4 * KIB,)))
    far_s = world.ends_s(far)[0]
    assert near.end_s == pytest.approx(ALONE_S)
    assert far.start_s is not None
    # three quarters of the entries are not there; it lies across two pages, and begins and ends within sectors
    assert far_s - far.start_s > ALONE_S + 6e-6


READS = st.lists(
    st.tuples(
        st.floats(0, 2e-3),
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 40_000)), min_size=0, max_size=6),
        st.one_of(st.none(), st.floats(0, 4e-3)),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=25)
@given(READS, st.integers(1, 8), st.sampled_from(["half", "full"]))
def test_every_block_asked_for_is_moved_once_or_given_back(batches: list, depth: int, duplex: str) -> None:
    world = World(spec(queue_depth=depth, duplex=duplex))
    asked: list[tuple[Ticket, int]] = []

    def ask(writes: bool, extents: Extents, cancel_s: float | None) -> None:
        ticket = (world.storage.write if writes else world.storage.read)(extents)
        asked.append((ticket, int(commands_of(extents, world.storage.spec)[1].sum())))
        if cancel_s is not None:
            world.at(cancel_s, ticket.cancel)

    for at_s, writes, ranges, cancel_s in batches:
        extents = Extents([512 * block for block, _ in ranges], [length for _, length in ranges])
        world.at(at_s, lambda arguments=(writes, extents, cancel_s): ask(*arguments))
    world.ends_s()
    moved = 0.0
    for ticket, n_bytes in asked:
        assert ticket.processed
        if ticket.cancelled:
            assert 0 <= ticket.value.bytes_done <= n_bytes
            moved += ticket.value.bytes_done
        else:
            moved += n_bytes
    assert sum(span.n_bytes for span in world.spans) == moved
    # Cancelled commands that were under way come to their end; then every place in the queue is free.
    assert world.storage.flash.advance(1e9) == []
    assert world.storage.flash._free == depth


@settings(deadline=None, max_examples=25)
@given(READS, st.integers(1, 8))
def test_looking_ahead_changes_nothing(batches: list, depth: int) -> None:
    """The device that is looked into at every end of a batch, and one that runs from arrival to arrival."""
    world = World(spec(queue_depth=depth))
    plain, number = Flash(ROUND, depth, half_duplex=False), itertools.count()
    ends_s: dict[int, float] = {}
    tickets = []
    for at_s, writes, ranges, _ in sorted(batches, key=lambda batch: batch[0]):
        # In ascending order, none against another, as they come to the device.
        offsets = [2_000_000 * at + 512 * block for at, (block, _) in enumerate(ranges)]
        lengths = [length for _, length in ranges]
        ends_s |= {batch: end_s for end_s, batch, _ in plain.advance(at_s)}
        plain.feed(next(number), writes, offsets, lengths, 0.0)
        world.at(
            at_s,
            lambda w=writes, o=offsets, n=lengths: tickets.append(
                (world.storage.write if w else world.storage.read)(Extents(o, n))
            ),
        )
    ends_s |= {batch: end_s for end_s, batch, _ in plain.advance(1e9)}
    world.ends_s()
    assert [ticket.end_s for ticket in tickets] == pytest.approx([ends_s[batch] for batch in range(len(tickets))])


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 40_000)), min_size=1, max_size=40),
    st.integers(1, 16),
    st.sampled_from(["command_s", "page_read_s", "channel_bytes_per_s", "bus_bytes_per_s", "host_s"]),
)
def test_a_slower_part_makes_no_batch_faster(extents: list, depth: int, part: str) -> None:
    def seconds(flash: FlashSpec, depth: int) -> float:
        device = Flash(flash, depth, half_duplex=False)
        device.feed(0, False, [16 * KIB * page for page, _ in extents], [length for _, length in extents], 0.0)
        found = device.first_end_s()
        assert found is not None
        return found

    value = getattr(ROUND, part)
    slower = ROUND.model_copy(update={part: value / 2 if part.endswith("per_s") else value * 2})
    # Overtaking on the way may turn out well for a slower device, by a page or so.
    assert seconds(slower, depth) >= seconds(ROUND, depth) - 70e-6
    assert seconds(ROUND, depth) >= seconds(ROUND, depth + 8) - 70e-6


def test_the_curve_of_a_device_foretells_its_batches() -> None:
    quick = ROUND.model_copy(update={"page_read_s": 10e-6})
    both = spec(quick)
    rng = np.random.default_rng(5)
    for block_kib, commands in ((4, 600), (16, 600), (64, 300), (256, 100), (4, 1), (12, 600), (300, 100)):
        # Wherever they lie, they begin with a page.
        page_offsets = rng.permutation(4 * commands)[:commands] * 512 * KIB
        extents = Extents(page_offsets + rng.integers(0, 8, commands) * 16 * KIB, np.full(commands, block_kib * KIB))
        seconds = []
        for model in (CurveStorage, QueueStorage):
            env = simpy.Environment()
            ticket = model(env, both, lambda span: None).read(extents)
            env.run()
            seconds.append(ticket.end_s)
        assert seconds[0] == pytest.approx(seconds[1], rel=0.1), block_kib
