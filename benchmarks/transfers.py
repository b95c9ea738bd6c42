"""How fast a world of nothing but transfers runs, beside bare SimPy.

The ceiling is a loop of time-outs: the most events that SimPy processes, and nothing done. A link as one writes
it in bare SimPy, with a resource that processes request, hold and release (one rate, in order, no sharing, no
cancelling, no records), spends five events on a transfer; ours spends two, its end of service and its ticket.
So there are two rows a link: events beside the ceiling, and transfers beside those of the bare link.
"""

import itertools
from collections.abc import Callable, Iterator
from time import process_time

import numpy as np
import simpy

from benchmarks.row import Row, best_s, higher
from kvferry.machine.span import Span
from kvferry.sim.link import Link
from kvferry.traces.rate import RateTrace

TRANSFERS = 100_000
REPEATS = 7
UNDER_WAY = 16  # transfers that each flow keeps handed over
RATE = 80e6
SIZES = (50_000.0, 43_000.0, 61_000.0)  # so that flows do not end in step

Rates = tuple[float, float]  # events and transfers per second


def time_outs(env: simpy.Environment) -> None:
    def tick() -> Iterator[simpy.Event]:
        for _ in range(TRANSFERS):
            yield env.timeout(1.0)

    env.process(tick())
    env.run()


def resource(env: simpy.Environment) -> None:
    slots = simpy.Resource(env, capacity=1)

    def transfer(n_bytes: float) -> Iterator[simpy.Event]:
        with slots.request() as turn:
            yield turn
            yield env.timeout(n_bytes / RATE)

    def request() -> Iterator[simpy.Event]:
        under_way = [env.process(transfer(SIZES[i % 3])) for i in range(UNDER_WAY)]
        for i in range(TRANSFERS - UNDER_WAY):
            yield under_way[i % UNDER_WAY]
            under_way[i % UNDER_WAY] = env.process(transfer(SIZES[i % 3]))

    env.process(request())
    env.run()


def link(flows: int, trace: RateTrace, rtt_s: float) -> Callable[[simpy.Environment], None]:
    def run(env: simpy.Environment) -> None:
        spans: list[Span] = []
        link = Link(env, trace, rtt_s, spans.append)

        def request(flow: int) -> Iterator[simpy.Event]:
            under_way = [link.transfer(flow, SIZES[(flow + i) % 3]) for i in range(UNDER_WAY)]
            for i in range(TRANSFERS // flows - UNDER_WAY):
                yield under_way[i % UNDER_WAY]
                under_way[i % UNDER_WAY] = link.transfer(flow, SIZES[(flow + i) % 3])

        for flow in range(flows):
            env.process(request(flow))
        env.run()
        link.bottleneck.check()
        assert len(spans) == TRANSFERS

    return run


def measure(work: Callable[[simpy.Environment], None]) -> Rates:
    """The best of some runs, in CPU time: other work on the machine counts less."""
    env = simpy.Environment()
    work(env)
    # SimPy numbers its events, and all of them have happened.
    events = next(env._eid)
    took_s = best_s(lambda: work(simpy.Environment()), rounds=REPEATS, clock=process_time)
    return events / took_s, TRANSFERS / took_s


def rows() -> Iterator[Row]:
    steady = RateTrace.constant(RATE)
    replayed = RateTrace.from_samples(np.random.default_rng(7).uniform(20e6, 140e6, 600), 0.1)
    ceiling, by_resource = measure(time_outs), measure(resource)
    yield higher("bare SimPy: time-outs", ceiling[0], "events/s")
    yield higher("bare SimPy: a resource, events", by_resource[0], "events/s", ceiling[0])
    yield higher("bare SimPy: a resource, transfers", by_resource[1], "transfers/s")
    for flows, (name, trace, rtt_s) in itertools.product(
        (1, 8), (("steady", steady, 0.0), ("replayed", replayed, 4e-3))
    ):
        label = f"link: {flows} flow{'s' * (flows > 1)}, {name}, RTT {rtt_s * 1e3:g} ms"
        events_per_s, transfers_per_s = measure(link(flows, trace, rtt_s))
        yield higher(f"{label}, events", events_per_s, "events/s", ceiling[0])
        yield higher(f"{label}, transfers (the resource's)", transfers_per_s, "transfers/s", by_resource[1])
