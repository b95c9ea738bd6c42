"""Run one scenario, in the modelled world or in the real one: from its description to what it leaves behind."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from kvferry.backends.sim.world import sim_world
from kvferry.backends.world import OpenWorld, Say, World
from kvferry.machine.ops import Op
from kvferry.machine.span import Span, Tell
from kvferry.pipelines.checks import check_names
from kvferry.pipelines.decoding.run import run_offload
from kvferry.pipelines.loading.clairvoyant import load_bound_s
from kvferry.pipelines.loading.reuse import OutOfMemory
from kvferry.pipelines.loading.systems import SYSTEMS, System
from kvferry.pipelines.loading.workload import Workload
from kvferry.pipelines.record import Outcome, RequestRecord, Run
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import LinkDown, MissingExtra, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace

Progress = Callable[[int, int], None]
# Of the link's course that a run keeps for pictures; a longer run keeps means over time.
MOST_LINK_PIECES = 100_000


def _torch_world(scenario: Scenario, codec: str, tell: Tell, say: Say) -> AbstractContextManager[World]:
    # Imported when asked for: torch is an extra, and takes seconds to load.
    try:
        from kvferry.backends.live.loading.world import live_world
    except ImportError as error:
        raise MissingExtra(f"backend torch needs {error.name}: pip install 'kvferry[torch]'") from None

    return live_world(scenario, codec, tell, say)


BACKENDS: dict[str, OpenWorld] = {"sim": sim_world, "torch": _torch_world}


def run_scenario(
    scenario: Scenario,
    progress: Progress = lambda done, of: None,
    system: System | None = None,
    *,
    say: Say = lambda what: None,
    open_world: OpenWorld | None = None,
) -> Run:
    """Carry out every request of a scenario in its backend's world. `progress` is told how many are done, of how many,
    `say` what is made ready before.

    `system` is run instead of the one that the scenario names, in the world that `open_world` opens.

    Raises InputError for names and settings that do not exist. A model or context that does not fit and a
    link that ends are outcomes, told in the Run with what was finished by then; so it is after Ctrl-C.
    """
    began_s = perf_counter()
    check_names(scenario)
    if scenario.workload.kind == "offload-decode":
        return run_offload(scenario, progress, say=say)
    system = system or SYSTEMS[scenario.system].with_policies(scenario.policy_values)
    open_world = open_world or pick("backend", BACKENDS, scenario.backend)
    spans: list[Span] = []
    records: list[RequestRecord] = []

    def finished(record: RequestRecord) -> None:
        records.append(record)
        progress(len(records), scenario.workload.requests)

    with open_world(scenario, system.codec, spans.append, say) as world:
        estimate_s = price_s(scenario, scenario.costs.estimate)
        workload = Workload(scenario, system, world.link.mean(), estimate_s, world.stored)
        outcome, why, interrupted = _drive(world, workload, finished)
        until_s, ran_s = world.machine.env.now, perf_counter() - began_s
        memory = world.machine.memory
        return Run(
            outcome=outcome,
            why=why,
            requests=tuple(sorted(_with_bounds(scenario, world, workload, records), key=lambda r: r.request)),
            spans=tuple(spans),
            duration_s=until_s,
            energy_j=world.energy_j(until_s),
            memory_capacity_bytes=memory.capacity_bytes,
            memory_peak_bytes=memory.peak_bytes,
            kv_memory_peak_bytes=memory.peak_of("kv"),
            **_link_over(world.link, until_s),
            interrupted=interrupted,
            measured={"simulation_s": ran_s, "bounds_s": perf_counter() - began_s - ran_s} | world.measured(),
        )


def price_s(scenario: Scenario, cost_model: str) -> Callable[[Op], np.ndarray]:
    """What prices ops on the idle main processor, dispatch included, by a named cost model."""
    spec = scenario.device.processors[scenario.device.main]
    costs = main_costs(cost_model, scenario.device, scenario.model)
    return lambda op: costs.durations_s(op) + spec.dispatch_s


def _drive(world: World, workload: Workload, finished: Callable[[RequestRecord], None]) -> tuple[Outcome, str, bool]:
    """Outcome, why, and whether the user stopped it."""
    if world.weights_refused:
        return "out_of_memory", str(world.weights_refused), False
    env = world.machine.env
    try:
        env.run(until=env.process(workload.run(world.machine, finished)))
    except OutOfMemory as error:
        return "out_of_memory", str(error), False
    except LinkDown as error:
        return "infeasible", str(error), False
    except KeyboardInterrupt:
        return "done", "interrupted", True
    return "done", "", False


def _with_bounds(
    scenario: Scenario, world: World, workload: Workload, records: list[RequestRecord]
) -> list[RequestRecord]:
    """Each record with what nobody could have beaten, under the costs that the world obeyed."""
    truth_s = price_s(scenario, scenario.costs.truth)
    return [
        replace(
            record,
            bound_s=load_bound_s(
                workload.context(record.request).problem(truth_s),
                world.link,
                scenario.link.rtt_s,
                world.available,
                record.arrival_s,
            ),
        )
        for record in records
    ]


def _link_over(trace: RateTrace, until_s: float) -> dict[str, Any]:
    edges, rates = trace.course(0.0, until_s, MOST_LINK_PIECES) if until_s > 0 else (np.zeros(1), np.zeros(0))
    return {"link_times_s": tuple(edges.tolist()), "link_bytes_per_s": tuple(rates.tolist())}
