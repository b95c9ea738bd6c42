"""Processors, and the queue that copies and decompression share with them, against events computed by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import simpy

from kvferry.machine.ops import DecodeRun, DecodeStep, FeedForward, Op
from kvferry.machine.span import Span
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.sim.bus import MemoryBus
from kvferry.sim.cost import Cost
from kvferry.sim.processor import Processor
from kvferry.sim.slowed_queue import CopyQueue
from kvferry.specs.device import GatheredSpec, ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.traces.rate import RateTrace


def seconds(op: Op) -> Cost:
    """In these tests an op of batch n costs n seconds and moves no bytes."""
    assert isinstance(op, FeedForward)
    return Cost(float(op.batch))


class World:
    def __init__(
        self,
        load: RateTrace | None = None,
        dispatch_s: float = 0.0,
        load_s: float = 0.0,
        cost: Callable[[Op], Cost] = seconds,
        bus: MemoryBus | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.spans: list[Span] = []
        spec = ProcessorSpec(kind="gpu", flop_per_s=1e12, bytes_per_s=1e9, dispatch_s=dispatch_s, load_s=load_s)
        self.gpu = Processor(self.env, "gpu", spec, cost, load, bus, self.spans.append)

    def at(self, time_s: float, do: Callable[[], object]) -> None:
        self.env.timeout(time_s).callbacks.append(lambda _: do())

    def order(self) -> list[str]:
        """Labels in the order in which the ops ran."""
        self.env.run()
        assert self.gpu.queued == 0
        return [span.label for span in self.spans]


def test_ops_run_one_by_one_each_after_its_dispatch() -> None:
    # 0.25 + 1, then 0.25 + 2
    world = World(dispatch_s=0.25)
    first = world.gpu.submit(FeedForward(1), label="a", request=4, result="answer")
    second = world.gpu.submit(FeedForward(2), label="b")
    assert world.gpu.queued == 1
    assert world.order() == ["a", "b"]
    assert (first.end_s, second.start_s, second.end_s) == (1.25, 1.25, 3.5)
    assert first.value == "answer"
    assert world.spans[0] == Span("gpu", "a", 0.0, 1.25, 0.0, 4)


def test_a_ticket_is_not_triggered_before_it_fires() -> None:
    world = World()
    ticket = world.gpu.submit(FeedForward(1))
    seen: list[bool] = []
    world.at(0.5, lambda: seen.append(ticket.triggered))
    world.env.run(until=ticket)
    assert (seen, ticket.triggered, world.env.now) == ([False], True, 1.0)


def test_all_of_and_processes_wait_for_tickets() -> None:
    world = World()
    got: list[object] = []

    def wait():  # type: ignore[no-untyped-def]
        tickets = [world.gpu.submit(FeedForward(1), result=i) for i in range(3)]
        yield world.env.all_of(tickets)
        got.extend([world.env.now, *(ticket.value for ticket in tickets)])

    world.env.process(wait())
    world.env.run()
    assert got == [3.0, 0, 1, 2]


def test_a_lower_priority_number_overtakes_but_does_not_interrupt() -> None:
    world = World()
    for label in "ab":
        world.gpu.submit(FeedForward(1), label=label, priority=5)
    world.gpu.submit(FeedForward(1), label="c", priority=0)
    world.gpu.submit(FeedForward(1), label="d", priority=5)
    assert world.order() == ["a", "c", "b", "d"]


def test_what_waits_holds_up_its_own_priority_only() -> None:
    # b waits for x until 3 s; c is behind it; d is not
    world = World()
    other = World()
    other.env, other.gpu.env = world.env, world.env
    x = other.gpu.submit(FeedForward(3))
    world.gpu.submit(FeedForward(1), label="a")
    world.gpu.submit(FeedForward(1), label="b", after=[x])
    world.gpu.submit(FeedForward(1), label="c")
    world.gpu.submit(FeedForward(1), label="d", priority=9)
    assert world.order() == ["a", "d", "b", "c"]
    assert [span.start_s for span in world.spans] == [0.0, 1.0, 3.0, 4.0]


def test_an_urgent_op_may_wait_for_a_less_urgent_one() -> None:
    # were the whole queue held up by a, this would never end
    world = World()
    prefetch = world.gpu.submit(FeedForward(1), label="prefetch", priority=1)
    later = world.gpu.submit(FeedForward(1), label="later", priority=1)
    world.gpu.submit(FeedForward(1), label="a", after=[prefetch, later])
    assert world.order() == ["prefetch", "later", "a"]


def test_chains_are_handed_over_at_once() -> None:
    world = World()
    ticket: Ticket | None = None
    for i in range(5):
        ticket = world.gpu.submit(FeedForward(1), label=str(i), after=[ticket] if ticket else [])
    assert world.order() == list("01234")
    assert world.env.now == 5.0


def test_a_queued_op_can_be_cancelled_a_running_one_cannot() -> None:
    world = World()
    a, b, c = (world.gpu.submit(FeedForward(1), label=label) for label in "abc")
    depends = world.gpu.submit(FeedForward(1), label="d", after=[b])
    done: list[float] = []
    world.at(0.5, lambda: done.extend([a.cancel(), b.cancel()]))
    assert world.order() == ["a", "c"]
    assert done == [0.0, 0.0]
    assert (a.cancelled, b.value, depends.value) == (False, Cancelled(0.0), Cancelled(0.0))
    assert (b.end_s, b.start_s, c.end_s) == (0.5, None, 2.0)


def test_cancelling_what_holds_up_the_queue_lets_it_go_on() -> None:
    world = World()
    never = Ticket(world.env)
    a = world.gpu.submit(FeedForward(1), label="a", after=[never])
    b = world.gpu.submit(FeedForward(1), label="b")
    world.at(2, a.cancel)
    assert world.order() == ["b"]
    assert b.end_s == 3.0


def test_a_failure_spreads_with_its_message() -> None:
    world = World()
    broken = Ticket(world.env)
    waits = world.gpu.submit(FeedForward(1), after=[broken])
    free = world.gpu.submit(FeedForward(1))
    world.at(1, lambda: broken.fail(InputError("no such file")))
    with pytest.raises(InputError, match="no such file"):
        world.env.run(until=waits)
    world.env.run()
    assert free.end_s == 2.0


# --- background load -------------------------------------------------------------------------------------------


def test_a_background_load_stretches_dispatch_and_cost() -> None:
    # Load 0.5 in the first of every 2 s. a costs 2: dispatch to 0.5; by 1 s 0.25 are done, by 2 s 1.25, by 3 s 1.75,
    # all by 3.25. b costs 0.5: dispatch to 3.5, at full speed until 4.
    load = RateTrace(np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.0]), "loop")
    world = World(load=load, dispatch_s=0.25)
    a, b = world.gpu.submit(FeedForward(2)), world.gpu.submit(FeedForward(0.5))
    world.env.run()
    assert (a.end_s, b.end_s) == pytest.approx((3.25, 4.0))


def test_speed_is_nominal_over_actual() -> None:
    # two ops of 1 s, each at half speed: ends at 2 and 4
    world = World(load=RateTrace.constant(0.5))
    seen: list[float | None] = []
    for _ in range(2):
        world.gpu.submit(FeedForward(1))
    for time_s, window_s in [(1.0, 5.0), (3.0, 5.0), (5.0, 0.5), (5.0, 2.0)]:
        world.at(time_s, lambda window_s=window_s: seen.append(world.gpu.speed(window_s)))  # type: ignore[misc]
    world.env.run()
    assert seen == [None, 0.5, None, 0.5]


def test_a_load_that_ends_leaves_the_processor_free() -> None:
    # half speed to 1 s, then 0.5 s
    load = RateTrace(np.array([0.0, 1.0]), np.array([0.5]), "end")
    world = World(load=load)
    ticket = world.gpu.submit(FeedForward(1))
    world.env.run()
    assert ticket.end_s == 1.5


def test_a_load_that_leaves_nothing_for_ever_is_refused() -> None:
    with pytest.raises(InputError, match="background load of gpu"):
        World(load=RateTrace.constant(1.0))


def test_the_graph_of_an_npu_is_loaded_once() -> None:
    # asked at 1: loaded until 3, then 0.25 + 1, then 0.25 + 1
    world = World(load_s=2.0, dispatch_s=0.25)
    tickets: list[Ticket] = []
    world.at(1, lambda: tickets.extend(world.gpu.submit(FeedForward(1)) for _ in range(2)))
    world.env.run()
    assert [(ticket.start_s, ticket.end_s) for ticket in tickets] == [(3.0, 4.25), (4.25, 5.5)]
    assert world.spans[0] == Span("gpu", "load", 1.0, 3.0)
    assert world.gpu.speed(10) == 1.0
    assert world.gpu.utilisation(5.5) == pytest.approx(4.5 / 5.5)


def test_a_processor_that_was_started_keeps_an_op_waiting_no_longer_than_it_needs() -> None:
    # Started at 1 and ready at 3: an op of 1 s that comes at 2 waits for 1, one that comes at 6 does not wait.
    world = World(load_s=2.0)
    tickets: list[Ticket] = []
    assert world.gpu.starting_s == 2.0
    world.at(1, world.gpu.start)
    world.at(1.5, world.gpu.start)
    for at_s in (2, 6):
        world.at(at_s, lambda: tickets.append(world.gpu.submit(FeedForward(1))))
    world.env.run()
    assert [(ticket.start_s, ticket.end_s) for ticket in tickets] == [(3.0, 4.0), (6.0, 7.0)]
    assert [span for span in world.spans if span.label == "load"] == [Span("gpu", "load", 1.0, 3.0)]
    assert world.gpu.starting_s == 0.0


# --- what it tells of itself -----------------------------------------------------------------------------------


def test_utilisation_looks_back_as_far_as_asked() -> None:
    # busy 0 to 1 and 3 to 4
    world = World()
    seen: list[float] = []
    world.gpu.submit(FeedForward(1))
    world.at(3, lambda: world.gpu.submit(FeedForward(1)))
    for time_s, window_s in [(0.0, 1.0), (0.5, 1.0), (2.0, 2.0), (3.5, 1.0), (4.0, 10.0)]:
        world.at(time_s, lambda window_s=window_s: seen.append(world.gpu.utilisation(window_s)))  # type: ignore[misc]
    world.env.run()
    assert seen == [0.0, 1.0, 0.5, 0.5, 0.5]


def test_copies_take_latency_and_bytes_over_the_rate() -> None:
    # 0.5 + 100 / 50 each
    env = simpy.Environment()
    spans: list[Span] = []
    copies = CopyQueue(env, bytes_per_s=50, latency_s=0.5, tell=spans.append)
    tickets = [copies.copy(100, label="kv") for _ in range(2)]
    env.run()
    assert [ticket.end_s for ticket in tickets] == [2.5, 5.0]
    assert spans[0] == Span("copy", "kv", 0.0, 2.5, 100)


def test_scattered_ranges_are_copied_at_the_rate_of_their_length() -> None:
    # Ranges of 10 B go at 5 B/s, of 1,000 B at 15 B/s, and half way between their logarithms at 10; longer ones at 50.
    env = simpy.Environment()
    gathered = [GatheredSpec(range_bytes=10, bytes_per_s=5), GatheredSpec(range_bytes=1000, bytes_per_s=15)]
    copies = CopyQueue(env, bytes_per_s=50, latency_s=0.5, tell=lambda _: None, gathered=gathered)
    sizes = [(100, 20), (100, 10), (100, 1), (3000, 3), (2000, 1), (0, 0)]
    took = [copies.copy(n_bytes, ranges=ranges) for n_bytes, ranges in sizes]
    env.run()
    ends = [0.0, *(ticket.end_s for ticket in took)]
    assert np.diff(ends) == pytest.approx([20.5, 20.5, 10.5, 200.5, 40.5, 0.5])


# --- theory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under_bus", [False, True])
def test_mean_wait_of_poisson_arrivals(under_bus: bool) -> None:
    # M/D/1: rho / (2 (1 - rho)) = 1.1667 s at rho = 0.7; the bus is not contended, so it changes nothing
    def mean_wait_s(seed: int) -> float:
        bus = MemoryBus(100.0) if under_bus else None
        world = World(cost=lambda _: Cost(1.0, 80.0), bus=bus)
        tickets: list[tuple[float, Ticket]] = []

        def arrive():  # type: ignore[no-untyped-def]
            for gap_s in np.random.default_rng(seed).exponential(1 / 0.7, 4000):
                yield world.env.timeout(gap_s)
                tickets.append((world.env.now, world.gpu.submit(FeedForward(1))))

        world.env.process(arrive())
        world.env.run()
        return float(np.mean([(ticket.start_s or 0) - asked_s for asked_s, ticket in tickets[500:]]))

    means = [mean_wait_s(seed) for seed in range(10)]
    error = np.std(means, ddof=1) / len(means) ** 0.5
    assert abs(np.mean(means) - 0.7 / (2 * 0.3)) < 3 * error
    assert error < 0.05 * 1.1667


def test_a_run_of_steps_takes_what_its_steps_do() -> None:
    # A step behind c tokens takes 1 + c / 100 s, and 0.5 s to hand over: four of them behind 10, 11, 12 and 13 tokens.
    def cost(op: Op) -> Cost:
        assert isinstance(op, DecodeStep)
        return Cost(1 + float(op.context_tokens) / 100, 8.0)

    world = World(dispatch_s=0.5, cost=cost)
    run = world.gpu.submit(DecodeRun(4, 10))
    world.env.run()
    assert run.end_s == pytest.approx(sum(1.5 + context / 100 for context in (10, 11, 12, 13)))
    assert world.spans[0].n_bytes == 4 * 8
