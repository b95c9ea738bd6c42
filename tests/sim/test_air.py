"""Cells by hand: devices of one share its 10 Mbit/s, and those of another are not disturbed."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import simpy

from kvferry.machine.span import Span
from kvferry.sim.access import Access, Accesses, Cell, Late
from kvferry.sim.channel import Switchboard
from kvferry.sim.link import Link
from kvferry.specs.errors import LinkDown
from kvferry.traces.chance import Source, generator
from kvferry.traces.rate import RateTrace

# What 10 Mbit/s carry in a second.
SECOND = 1.25e6


def silent(span: object) -> None:
    pass


class Cellular:
    """Devices a, b and d of one cell and c of another, with a cloud; no round trip unless `rtt_s` says so."""

    def __init__(self, rate: RateTrace | None = None, rtt_s: float = 0.0, late: Late | None = None) -> None:
        self.env, self.spans = simpy.Environment(), list[Span]()
        rate = rate or RateTrace.constant(SECOND)
        self.cells = [Cell(self.env, rate, None, rtt_s, late) for _ in range(2)]
        self.links = [Link(self.env, rate, 0.0, silent) for _ in range(2)]
        self.ways = {name: self.cells[name == "c"].access(self.spans.append) for name in "abcd"}
        self.carry = Accesses(self.env, self.ways)
        self.board = Switchboard(self.env, self.carry)

    def ends_s(self, *sent: tuple[str, float, float]) -> list[float]:
        """When messages arrive that are sent to devices, each of so many bytes and at such a time."""
        found = [0.0] * len(sent)

        def send(n: int, to: str, n_bytes: float, at_s: float) -> simpy.events.ProcessGenerator:
            yield self.env.timeout(at_s)
            yield self.carry("cloud", to, n_bytes)
            found[n] = self.env.now

        for n, one in enumerate(sent):
            self.env.process(send(n, *one))
        self.env.run()
        return found

    def streamed(self, to: str, parts: list[tuple[float, float]], came: Callable[[float, object], None]) -> None:
        """Streams to a device parts of SECOND bytes times the share and at the time that each has."""

        def cloud() -> simpy.events.ProcessGenerator:
            (share,) = {share for share, _ in parts}
            stream = self.board.open("cloud", to).stream(share * SECOND)
            for _, at_s in parts:
                yield self.env.timeout(at_s - self.env.now)
                stream.put(at_s)
            stream.end()

        self.env.process(cloud())

        def each(times_s: Sequence[float], values: Sequence[object]) -> None:
            for time_s, value in zip(times_s, values, strict=True):
                came(time_s, value)

        self.board.open(to, "cloud").receive(each)


def test_two_messages_in_one_cell_take_twice_as_long_and_one_in_another_does_not() -> None:
    assert Cellular().ends_s(("a", SECOND, 0.0)) == pytest.approx([1.0])
    assert Cellular().ends_s(("a", SECOND, 0.0), ("b", SECOND, 0.0), ("c", SECOND, 0.0)) == pytest.approx([2, 2, 1])


def test_messages_that_overlap_share_what_is_left() -> None:
    # b begins half-way: each then has half a second's bytes left, and half the rate. Behind 10 ms of half a round trip.
    assert Cellular(rtt_s=0.02).ends_s(("a", SECOND, 0.0), ("b", SECOND, 0.5)) == pytest.approx([1.51, 2.01])


def test_one_device_has_its_messages_one_behind_the_other() -> None:
    # Three messages, two of them to a: one flow, so a and b have half each until b has a second's bytes.
    got = Cellular().ends_s(("a", SECOND, 0.0), ("a", SECOND, 0.0), ("b", SECOND, 0.0))
    assert got == pytest.approx([2.0, 3.0, 2.0])


def test_parts_of_a_stream_take_their_share() -> None:
    # As the message half-way: the message at 1.5 s, the part at 2.0.
    cell, came_s = Cellular(), list[float]()
    cell.streamed("b", [(1.0, 0.5)], lambda time_s, _: came_s.append(time_s))
    assert cell.ends_s(("a", SECOND, 0.0)) == pytest.approx([1.5])
    assert came_s == pytest.approx([2.0])


def test_streams_share_with_each_other_though_nobody_looks_meanwhile() -> None:
    # Parts of a tenth of a second: both at 0.2 s, then one alone at 1.1 s; c has its own air.
    cell, came_s = Cellular(), {name: list[float]() for name in ("a", "b", "c")}
    for name, at_s in (("a", [0.0, 1.0]), ("b", [0.0]), ("c", [0.0])):
        cell.streamed(name, [(0.1, one) for one in at_s], lambda time_s, _, n=name: came_s[n].append(time_s))
    cell.env.run()
    assert came_s == {"a": pytest.approx([0.2, 1.1]), "b": pytest.approx([0.2]), "c": pytest.approx([0.1])}


def drawn(seed: int) -> Iterator[tuple[str, float, list[float]]]:
    rng = generator(Source.DEVICES, seed)
    for device in "abcd":
        yield device, float(rng.uniform(0.01, 0.3)), np.cumsum(rng.exponential(0.3, size=20)).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_parts_arrive_as_messages_of_their_size_would(seed: int) -> None:
    rate = RateTrace.from_samples(generator(Source.LINKS, seed).uniform(0.0, 2 * SECOND, size=9), 0.7)
    streamed, messages = Cellular(rate, 0.05), Cellular(rate, 0.05)
    # Links whose flows are messages.
    for name in "abcd":
        messages.carry.connect(name, Access(Link(messages.env, rate, 0.0, silent), messages.links[name == "c"], 0.05))
    came_s = {name: list[float]() for name in "abcd"}
    for device, share, at_s in drawn(seed):
        parts = [(share, one) for one in at_s]
        streamed.streamed(device, parts, lambda time_s, _, n=device: came_s[n].append(time_s))
    streamed.env.run()
    sent = [(device, share * SECOND, one) for device, share, at_s in drawn(seed) for one in at_s]
    ends_s = messages.ends_s(*sent)
    assert [one for name in "abcd" for one in came_s[name]] == pytest.approx(ends_s, rel=1e-9)
    for cell in streamed.cells:
        cell.check()


def test_a_device_is_busy_with_its_own_messages_alone() -> None:
    cell = Cellular()
    cell.ends_s(("a", SECOND, 0.0), ("b", SECOND, 0.5))
    busy_s = [cell.ways[name].down.busy.busy_s(0.0, 10.0) for name in "abc"]
    assert busy_s == pytest.approx([1.5, 1.5, 0.0])
    assert [(span.resource, span.n_bytes) for span in cell.spans] == [("link", SECOND), ("link", SECOND)]


def test_who_hangs_up_is_told_what_has_arrived_and_no_more() -> None:
    # Parts of a tenth of a second at 0, 0.3 and 0.6 s; the device goes at 0.45.
    cell, came_s = Cellular(), list[float]()
    cell.streamed("a", [(0.1, 0.0), (0.1, 0.3), (0.1, 0.6)], lambda time_s, _: came_s.append(time_s))
    end = cell.board.open("a", "cloud")
    cell.env.run(until=0.45)
    assert end.heard_s == pytest.approx(0.4)
    end.hang_up()
    cell.env.run()
    assert came_s == pytest.approx([0.1, 0.4])


def test_air_that_ends_fails_what_is_under_way() -> None:
    cell = Cellular(RateTrace(np.array([0.0, 1.0]), np.array([SECOND]), "end"))
    cell.streamed("b", [(1.0, 0.0)], lambda time_s, _: None)
    with pytest.raises(LinkDown):
        cell.ends_s(("a", SECOND, 0.0))


def test_a_message_that_is_withdrawn_leaves_its_share() -> None:
    # Half of a's is there by 1 s; b then has the cell to itself.
    cell = Cellular()
    first = cell.carry("cloud", "a", SECOND)
    other = cell.carry("cloud", "b", SECOND)
    cell.env.run(until=1.0)
    assert first.cancel() == pytest.approx(0.5 * SECOND)
    cell.env.run(until=other)
    assert cell.env.now == pytest.approx(1.5)


def test_what_follows_a_message_that_is_withdrawn_on_its_way_keeps_its_order() -> None:
    cell = Cellular(rtt_s=0.02)
    first, *others = (cell.carry("cloud", "a", SECOND) for _ in range(3))
    first.cancel()
    cell.env.run()
    assert [other.end_s for other in others] == pytest.approx([1.01, 2.01])
