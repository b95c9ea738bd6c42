"""What every machine promises (machine/machine.py), written once, run against every backend.

Times are compared with each other and never with constants, so that a wall-clock backend can keep them too.
"""

import itertools
import math
from collections.abc import Sequence

import pytest
import simpy
from worlds import World, finish

from kvferry.machine.channel import ChannelBroken, ChannelStalled, Streamed
from kvferry.machine.machine import Refused
from kvferry.machine.ops import Assign, Chunks, Decompress, Extents, FeedForward, KvRef, Prefill, Retrieve, Select
from kvferry.machine.ticket import Cancelled, Ticket

OP = FeedForward(batch=1)


def chunks(world: World, *ids: int) -> Chunks:
    return Chunks(sequence=0, ids=ids, n_bytes=world.n_bytes * len(ids))


def extents(world: World) -> Extents:
    return Extents(offsets=(0,), lengths=(world.n_bytes,))


def overlap(a: Ticket, b: Ticket) -> bool:
    assert a.start_s is not None
    assert b.start_s is not None
    assert a.end_s is not None
    assert b.end_s is not None
    return max(a.start_s, b.start_s) < min(a.end_s, b.end_s)


def test_a_ticket_knows_when_its_work_began_and_ended(world: World) -> None:
    ticket = world.machine.submit(OP)
    assert not ticket.triggered
    finish(world, ticket)
    assert ticket.ok
    assert ticket.start_s is not None
    assert ticket.end_s is not None
    assert ticket.start_s < ticket.end_s <= world.machine.env.now


def test_work_on_one_queue_runs_in_order(world: World) -> None:
    tickets = [world.machine.submit(OP) for _ in range(4)]
    finish(world, *tickets)
    for before, after in itertools.pairwise(tickets):
        assert before.end_s <= after.start_s


def test_a_whole_chain_can_be_handed_over_at_once(world: World) -> None:
    machine = world.machine
    fetched = machine.fetch(chunks(world, 1), request=0)
    computed = machine.submit(OP, after=(fetched,))
    written = machine.write(extents(world), after=(computed,))
    read = machine.read(extents(world), after=(written,))
    copied = machine.copy(KvRef(0, 0, 0, None, world.n_bytes), to="host", after=(read,))
    last = machine.submit(OP, after=(copied, computed))
    finish(world, last)
    chain = [fetched, computed, written, read, last]
    for before, after in itertools.pairwise(chain):
        assert before.end_s <= after.start_s
    assert copied.processed


def test_after_a_ticket_that_has_fired_long_ago(world: World) -> None:
    first = world.machine.submit(OP)
    finish(world, first)
    second = world.machine.submit(OP, after=(first,))
    finish(world, second)
    assert second.start_s >= first.end_s


def test_paths_run_beside_each_other(world: World) -> None:
    machine = world.machine
    # Ten, as a busy machine may wake the paths' threads when the first has ended.
    computing = [machine.submit(OP) for _ in range(10)]
    paths = [machine.fetch(chunks(world, 1), request=0), machine.read(extents(world))]
    finish(world, *computing, *paths)
    for path in paths:
        assert any(overlap(one, path) for one in computing)


def test_fetches_of_one_request_arrive_in_order(world: World) -> None:
    tickets = [world.machine.fetch(chunks(world, i), request=0) for i in range(4)]
    order: list[int] = []
    for i, ticket in enumerate(tickets):
        ticket.callbacks.append(lambda _, i=i: order.append(i))
    finish(world, *tickets)
    assert order == [0, 1, 2, 3]


def test_a_lower_priority_number_overtakes_what_waits(world: World) -> None:
    machine = world.machine
    running = machine.submit(OP, priority=1)
    waiting = machine.submit(OP, priority=1)
    urgent = machine.submit(OP, priority=0)
    finish(world, running, waiting, urgent)
    assert urgent.end_s <= waiting.start_s


def test_cancelling_a_transfer_tells_the_bytes_done(world: World) -> None:
    machine = world.machine
    ticket = machine.fetch(Chunks(0, (1,), n_bytes=world.n_bytes * 50), request=0)
    finish(world, machine.fetch(chunks(world, 2), request=1))  # let some of it cross
    done = ticket.cancel()
    assert 0 <= done < world.n_bytes * 50
    finish(world, ticket)
    assert isinstance(ticket.value, Cancelled)
    assert ticket.value.bytes_done == done
    assert ticket.cancelled
    # The link is free for others at once.
    finish(world, machine.fetch(chunks(world, 3), request=0))


def test_cancelling_queued_work_takes_it_out(world: World) -> None:
    machine = world.machine
    running, queued, last = (machine.submit(OP) for _ in range(3))
    assert queued.cancel() == 0
    finish(world, running, last)
    assert queued.cancelled
    assert last.start_s >= running.end_s
    assert not last.cancelled


def test_cancelling_what_has_fired_changes_nothing(world: World) -> None:
    ticket = world.machine.submit(OP)
    finish(world, ticket)
    value = ticket.value
    assert ticket.cancel() == 0
    assert ticket.value is value
    assert not ticket.cancelled


def test_what_waits_for_cancelled_work_is_cancelled(world: World) -> None:
    machine = world.machine
    blocked = machine.fetch(Chunks(0, (1,), n_bytes=world.n_bytes * 50), request=0)
    dependent = machine.submit(Decompress(values=1000), after=(blocked,), on="decompress")
    last = machine.copy(KvRef(0, 0, 0, None, world.n_bytes), to="device", after=(dependent,))
    blocked.cancel()
    finish(world, last)
    assert dependent.cancelled
    assert last.cancelled


def test_memory_is_never_over_its_budget(world: World) -> None:
    memory = world.machine.memory
    free = memory.capacity_bytes - memory.used_bytes
    used = memory.used_bytes
    lease = memory.reserve(free * 0.75, "kv")
    assert not isinstance(lease, Refused)
    refused = memory.reserve(free * 0.5, "workspace")
    assert isinstance(refused, Refused)
    assert refused.tag == "workspace"
    assert refused.free_bytes == pytest.approx(free * 0.25)
    assert memory.used_bytes == pytest.approx(used + free * 0.75)
    lease.release()
    lease.release()  # harmless
    assert memory.used_bytes == pytest.approx(used)
    assert memory.peak_bytes == pytest.approx(used + free * 0.75)
    assert memory.peak_of("kv") == pytest.approx(free * 0.75)
    again = memory.reserve(free, "kv")
    assert not isinstance(again, Refused)
    again.release()


def test_kv_moves_between_tiers(world: World) -> None:
    machine = world.machine
    computed = machine.submit(OP)
    offloaded = machine.move(extents(world), "device", "host", after=(computed,))
    stored = machine.move(extents(world), "host", "storage", after=(offloaded,))
    brought = machine.move(extents(world), "storage", "device", after=(stored,))
    written = machine.move(extents(world), "device", "storage", after=(brought,))
    last = machine.move(extents(world), "storage", "host", after=(written,))
    finish(world, last)
    chain = [computed, offloaded, stored, brought, written, last]
    for before, after in itertools.pairwise(chain):
        assert before.end_s <= after.start_s
    with pytest.raises(ValueError, match="nothing moves within host"):
        machine.move(extents(world), "host", "host")


def test_every_tier_has_a_budget_of_its_own(world: World) -> None:
    machine = world.machine
    assert machine.memory_of("device") is machine.memory
    used = machine.memory.used_bytes
    leases = [machine.memory_of(tier).reserve(10, "kv") for tier in ("host", "storage")]
    assert machine.memory.used_bytes == used
    assert [machine.memory_of(tier).peak_of("kv") for tier in ("host", "storage")] == [10, 10]
    for lease in leases:
        assert not isinstance(lease, Refused)
        lease.release()


def test_assign_answers_with_a_centroid_of_every_row(world: World) -> None:
    ask = Assign(batch=2, centroids=5, step=1, layer=0, heads=3)
    tickets = [world.machine.submit(ask) for _ in range(2)]
    finish(world, *tickets)
    ids = tickets[0].value.ids
    assert (ids.shape, ids.dtype.name) == ((2, 3), "int32")
    assert 0 <= ids.min() <= ids.max() < 5
    assert (tickets[1].value.ids == ids).all()


def test_one_choice_before_the_pass(world: World) -> None:
    ticket = world.machine.submit(Retrieve(batch=2, groups=16, k=4, tokens=64, step=0, heads=2))
    finish(world, ticket)
    assert ticket.value.ids.shape == (2, 2, 4)


def test_channels_keep_the_order_and_say_when_they_end(world: World) -> None:
    here, there = world.machine.open("cloud"), world.peer.open("device")
    got: list[object] = []

    def cloud() -> simpy.events.ProcessGenerator:
        while (message := (yield there.receive())) is not None:
            got.append(message)
            yield there.send(("seen", message), n_bytes=10)
        there.close()

    def device() -> simpy.events.ProcessGenerator:
        for i in range(3):
            here.send(i, n_bytes=10)
        here.close()
        while (message := (yield here.receive())) is not None:
            got.append(message)

    env = world.machine.env
    talks = [env.process(cloud()), env.process(device())]
    env.run(until=env.all_of(talks))
    assert [m for m in got if isinstance(m, int)] == [0, 1, 2]
    assert [m for m in got if not isinstance(m, int)] == [("seen", 0), ("seen", 1), ("seen", 2)]


def test_a_stream_arrives_with_when_each_part_did_and_what_it_carried(world: World) -> None:
    here, there = world.machine.open("cloud"), world.peer.open("device")
    env = world.machine.env
    put_s = []
    told: list[tuple[float, object]] = []

    def device() -> simpy.events.ProcessGenerator:
        here.send("before", n_bytes=10)
        stream = here.stream(n_bytes=1)
        for value in (None, ["a", 7], "é"):
            put_s.append(env.now)
            stream.put(value)
            yield env.timeout(0.01)
        stream.end()
        here.send("behind", n_bytes=10)

    def tell(times_s: Sequence[float], values: Sequence[object]) -> None:
        assert max(times_s) <= env.now
        told.extend(zip(times_s, values, strict=True))

    env.process(device())
    assert env.run(until=there.receive(tell)) == "before"
    assert not told
    streamed = env.run(until=there.receive(tell))
    assert isinstance(streamed, Streamed)
    assert list(streamed.values) == [None, ["a", 7], "é"]
    # Each part was told before the stream, as it says.
    assert told == list(zip(streamed.times_s, streamed.values, strict=True))
    assert list(streamed.times_s) == sorted(streamed.times_s)
    assert all(arrived >= put for arrived, put in zip(streamed.times_s, put_s, strict=True))
    assert streamed.times_s[-1] <= env.now
    assert env.run(until=there.receive()) == "behind"


def test_who_waits_with_patience_hears_that_nothing_comes(world: World) -> None:
    here, there = world.machine.open("cloud"), world.peer.open("device")
    env = world.machine.env

    def device() -> simpy.events.ProcessGenerator:
        here.send("hello", n_bytes=10)
        stream = here.stream(n_bytes=1)
        # Longer in all than the peer has patience: parts count.
        for _ in range(6):
            stream.put()
            yield env.timeout(0.1)
        stream.end()
        # A stream that never goes on.
        here.stream(n_bytes=1).put()

    env.process(device())
    assert env.run(until=there.receive(patience_s=0.5)) == "hello"
    assert len(env.run(until=there.receive(patience_s=0.5)).times_s) == 6
    began_s = env.now
    with pytest.raises(ChannelStalled, match=r"nothing has come from device for 0\.5 s"):
        env.run(until=there.receive(patience_s=0.5))
    assert env.now - began_s >= 0.5


def test_who_receives_a_stream_knows_when_its_last_part_came(world: World) -> None:
    here, there = world.machine.open("cloud"), world.peer.open("device")
    env = world.machine.env
    stream = here.stream(n_bytes=1)
    received = there.receive()
    assert there.heard_s == -math.inf
    for _ in range(2):
        put_s = env.now
        stream.put()
        env.run(until=env.timeout(0.5))
        heard_s = there.heard_s
        assert put_s <= heard_s <= env.now
    # Without a further part nothing more is heard.
    env.run(until=env.timeout(0.5))
    assert there.heard_s == heard_s
    stream.end()
    assert env.run(until=received).times_s[-1] == pytest.approx(heard_s)


def test_a_channel_that_has_ended_stays_ended(world: World) -> None:
    here, there = world.machine.open("cloud"), world.peer.open("device")
    env = world.machine.env
    with pytest.raises(TypeError, match="None says that a channel has ended"):
        here.send(None, n_bytes=1)
    here.send("last", n_bytes=1)
    here.close()
    assert [env.run(until=there.receive()) for _ in range(4)] == ["last", None, None, None]
    with pytest.raises(RuntimeError, match="closed"):
        here.send("more", n_bytes=1)
    there.close()
    assert env.run(until=here.receive()) is None


def test_select_answers_with_ids_and_always_the_same(world: World) -> None:
    ask = Select(batch=2, groups=64, k=8, step=3, layer=1)
    tickets = [world.machine.submit(ask) for _ in range(2)]
    finish(world, *tickets)
    ids = tickets[0].value.ids
    assert ids.shape[0] == 2
    assert ids.shape[2] == 8
    assert ids.dtype.name == "int32"
    assert 0 <= ids.min() <= ids.max() < 64
    for row in ids.reshape(-1, 8):
        assert len(set(row.tolist())) == 8
    assert (tickets[1].value.ids == ids).all()


def test_facts_are_within_their_ranges(world: World) -> None:
    machine = world.machine
    before = machine.observe(1.0)
    assert before.link_queue == before.compute_queue == 0
    tickets = [machine.submit(Prefill(tokens=16, context_tokens=0)) for _ in range(3)]
    fetches = [machine.fetch(chunks(world, i), request=0) for i in range(3)]
    finish(world, tickets[0], fetches[0])
    asked_s = machine.env.now
    facts = machine.observe(1e3)
    assert asked_s <= facts.now_s <= machine.env.now
    assert 0 <= facts.link_utilisation <= 1
    assert 0 <= facts.compute_utilisation <= 1
    assert facts.goodput_bytes_per_s is None or facts.goodput_bytes_per_s > 0
    assert 0 <= facts.free_bytes <= world.capacity_bytes
    assert facts.compute_queue >= 0
    finish(world, *tickets, *fetches)


def test_two_requests_share_the_link(world: World) -> None:
    machine = world.machine
    a = machine.fetch(chunks(world, *range(8)), request=0)
    b = machine.fetch(chunks(world, *range(8)), request=1)
    finish(world, a, b)
    assert overlap(a, b)


def test_both_sides_learn_that_a_channel_has_broken_and_open_another(world: World) -> None:
    here, there = world.machine.open("cloud"), world.peer.open("device")
    env = world.machine.env
    here.send("ask", n_bytes=10)
    assert env.run(until=there.receive()) == "ask"
    assert not there.gone.triggered
    with pytest.raises(ChannelStalled):
        env.run(until=here.receive(patience_s=0.2))
    # Whether or not anybody receives there.
    env.run(until=env.any_of([there.gone, env.timeout(30)]))
    assert there.gone.triggered
    with pytest.raises(ChannelBroken):
        env.run(until=there.receive())
    anew, here = world.peer.open("device"), world.machine.open("cloud")
    here.send("anew", n_bytes=10)
    assert env.run(until=anew.receive()) == "anew"
    waits = anew.receive()
    here.hang_up()
    here.hang_up()
    assert here.gone.triggered
    with pytest.raises(ChannelBroken):
        env.run(until=waits)
    assert anew.gone.triggered
