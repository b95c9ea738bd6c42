"""How long a request takes to simulate, and what share of that SimPy would need for the same number of events.

python benchmarks/simulate.py
"""

from time import perf_counter

import simpy

from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

SYSTEMS = ("sparkv", "ferry", "strong-hybrid", "cachegen", "stream-only", "local-prefill")


def bare_events_per_s(events: int = 200_000) -> float:
    """A process that does nothing but wait: the ceiling."""
    env = simpy.Environment()

    def wait() -> simpy.events.ProcessGenerator:
        for _ in range(events):
            yield env.timeout(1.0)

    env.process(wait())
    began_s = perf_counter()
    env.run()
    return events / (perf_counter() - began_s)


def main() -> None:
    ceiling = bare_events_per_s()
    print(f"bare SimPy: {ceiling:,.0f} events/s")
    print(f"{'16Ki tokens of Llama-3.1-8B':32s} {'units':>6s} {'best of 5':>10s}")
    for coupling in ("per_head", "all_heads"):
        for system in SYSTEMS:
            scenario = load_scenario(
                "quickstart", ["workload.context=16Ki", f"system={system}", f"coupling={coupling}"]
            )
            run_scenario(scenario)  # imports and caches
            times = []
            for _ in range(5):
                began_s = perf_counter()
                run = run_scenario(scenario)
                times.append(perf_counter() - began_s)
            units = run.requests[0].units_computed + run.requests[0].units_streamed
            print(f"{coupling + ', ' + system:32s} {units:6d} {min(times):9.3f} s")


if __name__ == "__main__":
    main()
