"""How long a request over 16Ki tokens of Llama-3.1-8B takes to simulate: planning, bound and all events included."""

from collections.abc import Iterator

import simpy

from benchmarks.row import Row, best_s, higher, lower
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

SYSTEMS = ("sparkv", "ferry", "strong-hybrid", "cachegen", "stream-only", "local-prefill")
EVENTS = 200_000


def bare() -> None:
    """A process that does nothing but wait."""
    env = simpy.Environment()

    def wait() -> simpy.events.ProcessGenerator:
        for _ in range(EVENTS):
            yield env.timeout(1.0)

    env.process(wait())
    env.run()


def rows() -> Iterator[Row]:
    yield higher("bare SimPy", EVENTS / best_s(bare, rounds=3), "events/s")
    for coupling in ("per_head", "all_heads"):
        for system in SYSTEMS:
            scenario = load_scenario(
                "quickstart", ["workload.context=16Ki", f"system={system}", f"coupling={coupling}"]
            )
            (request,) = run_scenario(scenario).requests  # imports and caches
            units = request.units_computed + request.units_streamed
            took_s = best_s(lambda scenario=scenario: run_scenario(scenario))
            # Asked for: 0.3 s with SparKV's controller, 4,096 units.
            asked_s = 0.3 if (system, coupling) == ("sparkv", "per_head") else None
            yield lower(f"{system}, {coupling}, {units:,} units", took_s, "s", asked_s)
