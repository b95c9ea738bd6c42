"""What messages between machines cost, by hand: bytes on an up- and a downlink, and half the round trip either way."""

from dataclasses import replace

import numpy as np
import pytest
import simpy

from kvferry.sim.access import Access, Accesses, Cell
from kvferry.sim.channel import Switchboard
from kvferry.sim.link import Link
from kvferry.specs.errors import LinkDown
from kvferry.traces.derived import shifted
from kvferry.traces.rate import RateTrace

MB = 1e6


def silent(span: object) -> None:
    pass


def access(
    env: simpy.Environment, up: RateTrace | float = 1 * MB, down: float = 10 * MB, rtt_s: float = 0.02
) -> Access:
    up = up if isinstance(up, RateTrace) else RateTrace.constant(up)
    return Access(Link(env, up, 0.0, silent, "uplink"), Link(env, RateTrace.constant(down), rtt_s, silent), rtt_s)


def test_a_question_and_its_answer_by_hand() -> None:
    # 100 kB up at 1 MB/s and half of 20 ms: 0.11 s. 1 MB down at 10 MB/s and the other half: 0.22 s in all.
    env = simpy.Environment()
    board = Switchboard(env, Accesses(env, {"phone": access(env)}))
    times_s: list[float] = []

    def cloud() -> simpy.events.ProcessGenerator:
        end = board.open("cloud", "phone")
        yield end.receive()
        times_s.append(env.now)
        yield end.send("answer", 1 * MB)

    def phone() -> simpy.events.ProcessGenerator:
        end = board.open("phone", "cloud")
        end.send("question", 100e3)
        assert (yield end.receive()) == "answer"
        times_s.append(env.now)

    env.process(cloud())
    env.run(until=env.process(phone()))
    assert times_s == pytest.approx([0.11, 0.22])


def test_from_device_to_device_both_ways_cost() -> None:
    # Up at 1 MB/s with 10 ms behind it, then 20 ms before a downlink of 10 MB/s: 0.1 + 0.01 + 0.02 + 0.01 s.
    env = simpy.Environment()
    carry = Accesses(env, {"a": access(env), "b": access(env, rtt_s=0.04)})
    env.run(until=carry("a", "b", 100e3))
    assert env.now == pytest.approx(0.14)


def test_messages_share_the_downlink_with_fetches() -> None:
    # 1 MB each at 10 MB/s: alone 0.1 s, together 0.2 s; both begin after half the round trip.
    env = simpy.Environment()
    here = access(env)
    fetched = here.down.transfer(0, 1 * MB)
    env.run(until=env.all_of([Accesses(env, {"phone": here})("cloud", "phone", 1 * MB), fetched]))
    assert env.now == pytest.approx(0.01 + 0.2 + 0.01)  # a fetch has the other half of the round trip behind it


def test_the_order_of_messages_is_kept() -> None:
    env = simpy.Environment()
    board = Switchboard(env, Accesses(env, {"phone": access(env)}))
    here, there = board.open("phone", "cloud"), board.open("cloud", "phone")
    for number, n_bytes in enumerate((1e6, 1.0, 1e5, 0.0)):
        here.send(number, n_bytes)
    here.close()
    got: list[object] = []

    def cloud() -> simpy.events.ProcessGenerator:
        while (message := (yield there.receive())) is not None:
            got.append(message)

    env.run(until=env.process(cloud()))
    assert got == [0, 1, 2, 3]


def test_a_stream_is_there_with_its_last_part() -> None:
    # Two parts of 1 MB that are sent at once: half a round trip of 20 ms, then 0.1 s each at 10 MB/s.
    env = simpy.Environment()
    board = Switchboard(env, Accesses(env, {"phone": access(env)}))
    stream = board.open("cloud", "phone").stream(1 * MB)
    stream.put("one")
    stream.put("two")
    stream.end()
    came_s: list[float] = []
    env.run(until=board.open("phone", "cloud").receive(lambda times_s, parts: came_s.extend(times_s)))
    assert env.now == pytest.approx(0.21) and came_s == pytest.approx([0.11, 0.21])


def test_what_is_sent_behind_a_stream_comes_behind_its_last_part() -> None:
    # Two parts of 1 MB, a word, another part and a word: these cross in no time, and are there when the second is.
    env = simpy.Environment()
    board = Switchboard(env, Accesses(env, {"phone": access(env)}))
    here, there = board.open("cloud", "phone"), board.open("phone", "cloud")
    for parts, n_bytes, word in ((2, 1 * MB, "first"), (1, 10.0, "second")):
        stream = here.stream(n_bytes)
        for _ in range(parts):
            stream.put(word)
        stream.end()
        here.send(word, 0.0)
    came: list[tuple[object, float]] = []

    def phone() -> simpy.events.ProcessGenerator:
        for _ in range(4):
            found = yield there.receive(lambda times_s, parts: came.extend(zip(parts, times_s, strict=True)))
            if isinstance(found, str):
                came.append((found, env.now))

    env.run(until=env.process(phone()))
    assert [what for what, _ in came] == ["first", "first", "first", "second", "second"]
    assert [time_s for _, time_s in came] == pytest.approx([0.11, 0.21, 0.21, 0.21, 0.21])


def test_a_message_over_a_link_that_ends_is_lost_and_its_sender_learns_of_it() -> None:
    env = simpy.Environment()
    short = shifted(RateTrace.constant(1.0), 0.0)
    short = RateTrace(short.edges_s, short.rates, "end")
    board = Switchboard(env, Accesses(env, {"phone": access(env, up=short)}))
    end = board.open("phone", "cloud")
    end.send("no process waits for this one", 1e9)

    def phone() -> simpy.events.ProcessGenerator:
        with pytest.raises(LinkDown):
            yield end.send("lost", 1e9)

    env.run(until=env.process(phone()))


def test_a_message_that_is_late_holds_up_the_one_behind_it() -> None:
    # 10 ms and 50 ms more; the second, right behind the first and not late itself, is no sooner under way.
    env, late_s = simpy.Environment(), iter([0.05, 0.0])
    late = access(env)
    late = Access(late.up, late.down, late.rtt_s, lambda n: np.array([next(late_s) for _ in range(n)]))
    carry, arrived_s = Accesses(env, {"phone": late}), []
    for _ in range(2):
        sent = carry("phone", "cloud", 1e3)
        sent.callbacks.append(lambda _: arrived_s.append(env.now))  # type: ignore[union-attr]
    env.run()
    assert arrived_s == pytest.approx([0.001 + 0.060, 0.002 + 0.060])


def test_messages_that_were_sent_before_are_late_each_by_its_own_draw() -> None:
    # 20 ms of round trip: 10 ms one way, and 1, 2 and 3 s besides.
    env = simpy.Environment()
    way = replace(access(env), late=lambda n: np.arange(1.0, n + 1))
    assert way.ways_s([0.0, 0.5, 4.0]) == pytest.approx([1.01, 2.51, 7.01])
    assert access(env).ways_s([0.0, 0.5]) == pytest.approx([0.01, 0.51])


@pytest.mark.parametrize("in_a_cell", [False, True])
def test_a_part_that_is_put_on_a_stream_behind_the_close_does_not_come(in_a_cell: bool) -> None:
    env = simpy.Environment()
    cell = Cell(env, RateTrace.constant(1e3), None, 0.02, None)
    board = Switchboard(env, Accesses(env, {"phone": cell.access(lambda span: None)}) if in_a_cell else None)
    phone, cloud = board.open("phone", "cloud"), board.open("cloud", "phone")
    told: list[tuple[int, list[str]]] = []

    def close_between() -> simpy.events.ProcessGenerator:
        stream = cloud.stream(4.0)
        stream.put("before")
        yield env.timeout(1.0)
        cloud.close()
        stream.put("behind")
        yield env.timeout(1.0)
        stream.heard_s(env.now)  # type: ignore[attr-defined]
        received = yield phone.receive(lambda times_s, values: told.append((len(times_s), [*values])))
        assert received is None

    env.run(until=env.process(close_between()))
    assert told == [(1, ["before"])]
