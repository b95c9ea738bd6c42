"""The link against events computed by hand, and against queueing theory. Rates are in bytes/s, small on purpose."""

import itertools

import numpy as np
import pytest
import simpy

from kvferry.machine.span import Span
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.sim.link import Link
from kvferry.specs.errors import LinkDown
from kvferry.traces.rate import RateTrace


class World:
    """A link in an environment of its own, with its spans and the times at which tickets fired."""

    def __init__(self, trace: RateTrace | float, rtt_s: float = 0.0) -> None:
        self.env = simpy.Environment()
        self.spans: list[Span] = []
        trace = trace if isinstance(trace, RateTrace) else RateTrace.constant(trace)
        self.link = Link(self.env, trace, rtt_s, self.spans.append)

    def at(self, time_s: float, do) -> None:  # type: ignore[no-untyped-def]
        self.env.timeout(time_s).callbacks.append(lambda _: do())

    def run(self, *tickets: Ticket) -> list[float | None]:
        """Run to the end; when each ticket fired."""
        self.env.run()
        self.link.bottleneck.check()
        return [ticket.end_s for ticket in tickets]


def trace_of(*pieces: tuple[float, float], on_end: str = "end") -> RateTrace:
    """A trace from (duration, rate) pieces."""
    edges = list(itertools.accumulate((duration_s for duration_s, _ in pieces), initial=0.0))
    return RateTrace(np.array(edges), np.array([rate for _, rate in pieces]), on_end)  # type: ignore[arg-type]


def test_a_transfer_takes_the_rtt_and_its_bytes_over_the_rate() -> None:
    # asked at 0, at the bottleneck at 0.1, served in 100 / 100 = 1 s, there at 1.1 + 0.1
    world = World(100.0, rtt_s=0.2)
    ticket = world.link.transfer("a", 100, label="kv", request=3, result="the chunk")
    assert world.run(ticket) == pytest.approx([1.2])
    assert ticket.value == "the chunk"
    assert ticket.start_s == pytest.approx(0.1)
    [span] = world.spans
    assert (span.resource, span.label, span.n_bytes, span.request) == ("link", "kv", 100, 3)
    assert (span.start_s, span.end_s) == pytest.approx((0.1, 1.1))


def test_transfers_in_a_row_pay_the_rtt_once() -> None:
    # served from 0.1 to 1.1, 2.1, 3.1
    world = World(100.0, rtt_s=0.2)
    tickets = [world.link.transfer("a", 100) for _ in range(3)]
    assert world.link.queued == 3
    assert world.run(*tickets) == pytest.approx([1.2, 2.2, 3.2])
    assert world.link.queued == 0


def test_asking_again_after_arrival_pays_the_rtt_again() -> None:
    # there at 1.2; asked then, at the bottleneck at 1.3, served at 2.3, there at 2.4
    world = World(100.0, rtt_s=0.2)
    first = world.link.transfer("a", 100)
    second = world.link.transfer("a", 100, after=[first])
    assert world.run(first, second) == pytest.approx([1.2, 2.4])


def test_the_trace_is_integrated_over_an_outage() -> None:
    # 100 bytes until 1 s, none until 2 s, the other 50 at 50 B/s until 3 s
    world = World(trace_of((1, 100), (1, 0), (5, 50)))
    assert world.run(world.link.transfer("a", 150)) == [3.0]


def test_the_trace_loops() -> None:
    # 10 bytes a cycle of 2 s, all in its first second: 35 bytes are there half a second into the fourth cycle
    world = World(trace_of((1, 10), (1, 0), on_end="loop"))
    assert world.run(world.link.transfer("a", 35)) == [6.5]


def test_two_flows_share_until_one_is_done() -> None:
    # 50 B/s each: b has its 50 at 1 s; a its 50 others alone at 100 B/s, at 1.5 s
    world = World(100.0)
    assert world.run(world.link.transfer("a", 100), world.link.transfer("b", 50)) == [1.5, 1.0]


def test_a_flow_that_joins_takes_its_half() -> None:
    # a: 50 bytes by 0.5 s, then 50 at 50 B/s until 1.5 s; b: 50 by then, 50 alone until 2 s
    world = World(100.0)
    tickets = [world.link.transfer("a", 100)]
    world.at(0.5, lambda: tickets.append(world.link.transfer("b", 100)))
    world.run()
    assert [ticket.end_s for ticket in tickets] == [1.5, 2.0]


def test_k_equal_flows_end_together_in_the_order_of_their_start() -> None:
    # 8 flows x 25 bytes over 100 B/s = 2 s
    world = World(trace_of((0.5, 60), (0.5, 140), on_end="loop"))
    tickets = [world.link.transfer(flow, 25, label=str(flow)) for flow in range(8)]
    assert world.run(*tickets) == pytest.approx([2.0] * 8)
    assert [span.label for span in world.spans] == [str(flow) for flow in range(8)]


def test_a_flow_with_many_transfers_gets_no_more_than_one_with_few() -> None:
    # 50 B/s each: b's 100 bytes take 2 s, whatever a has queued; a's four end at 1 and 2, then at 2.5 and 3
    world = World(100.0)
    many = [world.link.transfer("a", 50) for _ in range(4)]
    assert world.run(world.link.transfer("b", 100), *many) == [2.0, 1.0, 2.0, 2.5, 3.0]


def test_no_bytes_take_no_time_in_their_turn() -> None:
    world = World(100.0)
    assert world.run(world.link.transfer("a", 100), world.link.transfer("a", 0)) == [1.0, 1.0]


def test_work_that_waits_holds_up_its_flow_and_no_other() -> None:
    # a's first waits for b's, which is there at 1 s; then 50 bytes each
    world = World(100.0)
    other = world.link.transfer("b", 100)
    first = world.link.transfer("a", 50, after=[other])
    behind = world.link.transfer("a", 50)
    assert world.run(other, first, behind) == [1.0, 1.5, 2.0]


def test_what_is_handed_over_at_once_costs_two_events_each() -> None:
    # one for the first to reach the bottleneck; one for each end of service and one for each ticket
    world = World(100.0, rtt_s=0.2)
    for _ in range(50):
        world.link.transfer("a", 10)
    steps = 0
    while world.env.peek() < float("inf"):
        world.env.step()
        steps += 1
    assert steps == 101


def test_small_transfers_stay_exact_after_large_ones() -> None:
    # 1e16 bytes in the first second; a double has no room for 1e16 + 1
    world = World(trace_of((1, 1e16), (1, 1), on_end="hold"))
    first = world.link.transfer("a", 1e16)
    assert world.run(first, world.link.transfer("a", 1, after=[first])) == [1.0, 2.0]


def test_after_what_has_fired_long_ago() -> None:
    world = World(100.0)
    early = world.link.transfer("a", 100)
    late: list[Ticket] = []
    world.at(3, lambda: late.append(world.link.transfer("a", 100, after=[early])))
    world.run()
    assert late[0].end_s == 4.0


# --- cancellation ----------------------------------------------------------------------------------------------


def test_cancelling_frees_the_capacity_at_once() -> None:
    # at 1 s both have 50 of 100; b ends alone at 1.5 s
    world = World(100.0)
    a, b = world.link.transfer("a", 100, label="a"), world.link.transfer("b", 100)
    done: list[float] = []
    world.at(1, lambda: done.append(a.cancel()))
    assert world.run(a, b) == [1.0, 1.5]
    assert done == [50.0]
    assert a.value == Cancelled(50.0)
    assert a.cancelled
    assert world.link.bottleneck.delivered_bytes == 150
    assert (world.spans[0].label, world.spans[0].n_bytes, world.spans[0].end_s) == ("a", 50.0, 1.0)


def test_cancelling_lets_the_next_of_the_flow_begin() -> None:
    # a runs to 0.4 s, the queued c is withdrawn too, b needs 0.5 s
    world = World(100.0)
    a, c, b = (world.link.transfer("a", n_bytes) for n_bytes in (100, 70, 50))
    world.at(0.4, lambda: [c.cancel(), a.cancel()])
    assert world.run(a, b) == pytest.approx([0.4, 0.9])
    assert c.value == Cancelled(0.0)
    assert len(world.spans) == 2


def test_cancelling_before_the_bottleneck_moves_nothing() -> None:
    # b was asked at 0 as well, so it is at the bottleneck at 0.1
    world = World(100.0, rtt_s=0.2)
    a, b = world.link.transfer("a", 100), world.link.transfer("a", 100)
    world.at(0.05, a.cancel)
    assert world.run(b) == pytest.approx([1.2])
    assert a.value == Cancelled(0.0)


def test_what_has_passed_the_bottleneck_arrives() -> None:
    # served at 1.1, cancelled at 1.15, there at 1.2
    world = World(100.0, rtt_s=0.2)
    a = world.link.transfer("a", 100)
    done: list[float] = []
    world.at(1.15, lambda: done.append(a.cancel()))
    assert world.run(a) == pytest.approx([1.2])
    assert (done, a.cancelled) == ([0.0], False)


def test_cancelling_what_has_fired_does_nothing() -> None:
    world = World(100.0)
    a = world.link.transfer("a", 100, result="kv")
    world.run()
    assert a.cancel() == 0.0
    assert a.value == "kv"


def test_what_waits_for_cancelled_work_is_cancelled() -> None:
    world = World(100.0)
    a = world.link.transfer("a", 100)
    b = world.link.transfer("b", 100, after=[a])
    c = world.link.transfer("c", 100, after=[b])
    d = world.link.transfer("b", 100)
    world.at(0.5, a.cancel)
    # d stood behind b in its flow: it has the link to itself from 0.5 s on
    assert world.run(a, b, c, d) == [0.5, 0.5, 0.5, 1.5]
    assert (a.value, b.value, c.value) == (Cancelled(50.0), Cancelled(0.0), Cancelled(0.0))


def test_one_cancelled_dependency_among_several_is_enough() -> None:
    world = World(100.0)
    a, b = world.link.transfer("a", 100), world.link.transfer("b", 100)
    c = world.link.transfer("c", 10, after=[a, b])
    world.at(0.5, a.cancel)
    world.run()
    assert c.cancelled
    assert c.end_s == 0.5
    late = world.link.transfer("c", 10, after=[b, a])
    world.run()
    assert late.cancelled


# --- the end of the trace --------------------------------------------------------------------------------------


def test_what_the_trace_cannot_deliver_fails_when_it_ends() -> None:
    # 100 bytes until 1 s, of which flows b and c get 50 each: all of a, half of c's, none of what is behind a
    world = World(trace_of((1, 100)))
    a = world.link.transfer("b", 50)
    hopeless = [world.link.transfer(flow, 100, label="kv") for flow in "bcb"]
    failures: list[tuple[float, str]] = []

    def wait(ticket: Ticket):  # type: ignore[no-untyped-def]
        try:
            yield ticket
        except LinkDown as down:
            failures.append((world.env.now, str(down)))

    for ticket in hopeless:
        world.env.process(wait(ticket))
    world.run()
    assert a.ok
    assert a.end_s == 1.0
    assert [time_s for time_s, _ in failures] == [1.0] * 3
    assert "kv still to come" in failures[0][1]
    assert world.link.bottleneck.delivered_bytes == 100
    assert world.link.queued == 0


def test_a_failure_spreads_to_what_waits_for_it() -> None:
    world = World(trace_of((1, 100)))
    a = world.link.transfer("a", 200)
    b = world.link.transfer("b", 0, after=[a])
    with pytest.raises(LinkDown):
        world.env.run(until=b)


def test_two_failures_are_reported_as_one_by_what_waits_for_both() -> None:
    world = World(trace_of((1, 100)))
    a, b = world.link.transfer("a", 200), world.link.transfer("b", 200)
    both = world.link.transfer("c", 0, after=[a, b])
    both.callbacks.append(lambda ticket: setattr(ticket, "defused", True))
    world.env.run()
    assert isinstance(both.value, LinkDown)


def test_cancelled_work_hides_no_failure_of_what_it_waited_for() -> None:
    world = World(trace_of((1, 100)))
    a = world.link.transfer("a", 200)
    b = world.link.transfer("b", 0, after=[a])
    world.at(0.5, b.cancel)
    with pytest.raises(LinkDown):
        world.env.run()


def test_a_failure_that_nobody_waits_for_ends_the_run() -> None:
    world = World(trace_of((1, 100)))
    world.link.transfer("a", 200)
    with pytest.raises(LinkDown):
        world.env.run()


def test_a_cancelled_competitor_may_save_the_other() -> None:
    # 100 bytes in all: each would get 50 of its 60; a has 20 when it goes at 0.4 s, b has its 40 others at 0.8 s
    world = World(trace_of((1, 100)))
    a, b = world.link.transfer("a", 60), world.link.transfer("b", 60)
    world.at(0.4, a.cancel)
    assert world.run(b) == pytest.approx([0.8])


# --- what it tells of itself -----------------------------------------------------------------------------------


def test_goodput_counts_transfers_under_way() -> None:
    # 100 bytes in the first second, then an outage
    world = World(trace_of((1, 100), (1, 0), (5, 50)))
    seen: list[tuple[float | None, float]] = []
    look = [(0.0, 1.0), (0.5, 10.0), (2.0, 1.0), (2.0, 2.0), (4.0, 2.0), (9.0, 2.0)]
    ticket = world.link.transfer("a", 150)
    for time_s, window_s in look:
        world.at(
            time_s,
            lambda window_s=window_s: seen.append(world.link.observe(window_s)),
        )
    assert world.run(ticket) == [3.0]
    # 4 s: busy from 2 to 3 with 50 bytes, half of the window
    assert seen == [(None, 0.0), (100.0, 1.0), (0.0, 1.0), (50.0, 1.0), (50.0, 0.5), (None, 0.0)]


def test_delivered_bytes_include_transfers_under_way() -> None:
    world = World(100.0)
    world.link.transfer("a", 100)
    world.link.transfer("b", 100)
    seen: list[float] = []
    world.at(0.5, lambda: seen.append(world.link.bottleneck.delivered_bytes))
    world.run()
    assert seen == [50.0]


# --- theory ----------------------------------------------------------------------------------------------------


def waits_of_poisson_transfers(seed: int, load: float, flow_of) -> list[float]:  # type: ignore[no-untyped-def]
    """Seconds from hand-over to arrival of transfers that take 1 s alone, warm-up dropped."""
    world = World(100.0)
    rng = np.random.default_rng(seed)
    tickets: list[tuple[float, Ticket]] = []

    def arrive():  # type: ignore[no-untyped-def]
        for number, gap_s in enumerate(rng.exponential(1 / load, 3000)):
            yield world.env.timeout(gap_s)
            tickets.append((world.env.now, world.link.transfer(flow_of(number), 100)))

    world.env.process(arrive())
    world.run()
    return [(ticket.end_s or 0) - asked_s for asked_s, ticket in tickets[500:]]


@pytest.mark.parametrize(
    ("flow_of", "expected_s"),
    [
        # M/D/1: 1 + rho / (2 (1 - rho)) = 1.75 s at rho = 0.6
        (lambda number: "one", 1.75),
        # M/D/1 with processor sharing: 1 / (1 - rho) = 2.5 s
        (lambda number: number, 2.5),
    ],
    ids=["one flow", "a flow each"],
)
def test_mean_times_of_poisson_arrivals(flow_of, expected_s: float) -> None:  # type: ignore[no-untyped-def]
    means = [np.mean(waits_of_poisson_transfers(seed, 0.6, flow_of)) for seed in range(10)]
    assert abs(np.mean(means) - expected_s) < 3 * np.std(means, ddof=1) / len(means) ** 0.5
    # and the spread is small enough for this to mean something
    assert np.std(means, ddof=1) / len(means) ** 0.5 < 0.03 * expected_s


def test_what_is_streamed_is_served_one_behind_the_other_by_arithmetic() -> None:
    # 100 B/s for 2 s, then nothing for 3 s, then 50 B/s. Parts of 50 B at 0, 0.1 and 1.8 s: the first takes half a
    # second, the second waits for it, the third has 20 B before the outage and 30 behind it.
    world = World(trace_of((2, 100), (3, 0), (5, 50)))
    assert world.link.served_s([0.0, 0.1, 1.8], 50, "Message") == pytest.approx([0.5, 1.0, 5.6])
    (span,) = world.spans
    assert (span.n_bytes, span.end_s) == (150, pytest.approx(5.6))
    assert span.end_s - span.start_s == pytest.approx(0.5 + 0.5 + 3.8)
    with pytest.raises(LinkDown, match="a stream still to come"):
        world.link.served_s([9.9], 50, "Message")
    # Nor does what is sent behind it.
    with pytest.raises(LinkDown, match="a stream still to come"):
        world.link.served_s([9.9, 9.95], 50, "Message")
