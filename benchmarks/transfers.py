"""How fast a world of nothing but transfers runs, beside bare SimPy: python benchmarks/transfers.py

The ceiling is a loop of time-outs: the most events that SimPy processes, and nothing done. A link as one writes
it in bare SimPy, with a resource that processes request, hold and release (one rate, in order, no sharing, no
cancelling, no records), spends five events on a transfer; ours spends two, its end of service and its ticket.
So two shares of the ceiling are shown: of events as they are counted, and of the events that the bare link
would have needed for as many transfers.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import simpy

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
        link.check()
        assert len(spans) == TRANSFERS

    return run


def measure(work: Callable[[simpy.Environment], None]) -> Rates:
    """The best of some runs, in CPU time: other work on the machine counts less."""
    best_s, events = float("inf"), 0
    for _ in range(REPEATS):
        env = simpy.Environment()
        gc.collect()
        start_s = time.process_time()
        work(env)
        best_s = min(best_s, time.process_time() - start_s)
        # SimPy numbers its events, and all of them have happened.
        events = next(env._eid)
    return events / best_s, TRANSFERS / best_s


def main() -> None:
    steady = RateTrace.constant(RATE)
    replayed = RateTrace.from_samples(np.random.default_rng(7).uniform(20e6, 140e6, 600), 0.1)
    ceiling, by_resource = measure(time_outs), measure(resource)
    print(f"{'':34}   events/s  share   transfers/s  events each  share at the bare link's events")
    rows = {"bare SimPy: time-outs": ceiling, "bare SimPy: a resource": by_resource}
    for flows, (name, trace, rtt_s) in itertools.product(
        (1, 8), (("steady", steady, 0.0), ("replayed", replayed, 4e-3))
    ):
        label = f"link: {flows} flow{'s' * (flows > 1)}, {name}, RTT {rtt_s * 1e3:g} ms"
        rows[label] = measure(link(flows, trace, rtt_s))
    each = by_resource[0] / by_resource[1]
    for label, (events_per_s, transfers_per_s) in rows.items():
        print(
            f"{label:34} {events_per_s:10,.0f} {events_per_s / ceiling[0]:6.0%}  {transfers_per_s:12,.0f}"
            f"  {events_per_s / transfers_per_s:11.1f}  {min(1.0, transfers_per_s * each / ceiling[0]):6.0%}"
        )


if __name__ == "__main__":
    main()
