"""Run one scenario in the modelled world: the whole story, from its description to what it leaves behind."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from kvferry.backends.simulated import SimMachine
from kvferry.machine.ops import Op
from kvferry.machine.span import Span
from kvferry.pipelines.clairvoyant import load_bound_s
from kvferry.pipelines.context_reuse import OutOfMemory
from kvferry.pipelines.record import Outcome, RequestRecord, Run
from kvferry.pipelines.systems import SYSTEMS, System
from kvferry.pipelines.workload import Workload
from kvferry.sim.costs.cost_model import COST_MODELS, main_costs
from kvferry.specs.errors import LinkDown, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import link_trace, load_trace

Progress = Callable[[int, int], None]


def run_scenario(scenario: Scenario, progress: Progress = lambda done, of: None, system: System | None = None) -> Run:
    """Simulate every request of a scenario. `progress` is told how many are done, of how many.

    `system` is run instead of the one that the scenario names.

    Raises InputError for names and settings that do not exist. A model or context that does not fit and a
    link that ends are outcomes, told in the Run with what was finished by then; so it is after Ctrl-C.
    """
    began_s = perf_counter()
    system = system or pick("system", SYSTEMS, scenario.system).with_policies(scenario.policy_values)
    spans: list[Span] = []
    machine = machine_of(scenario, spans.append)
    estimate_s = price_s(scenario, scenario.costs.estimate)
    workload = Workload(scenario, system, machine.link.trace.mean(), estimate_s)
    records: list[RequestRecord] = []

    def finished(record: RequestRecord) -> None:
        records.append(record)
        progress(len(records), scenario.workload.requests)

    outcome, why, interrupted = _drive(machine, workload, finished)
    simulated_s = perf_counter() - began_s
    return Run(
        outcome=outcome,
        why=why,
        requests=tuple(sorted(_with_bounds(scenario, machine, workload, records), key=lambda r: r.request)),
        spans=tuple(spans),
        duration_s=machine.env.now,
        energy_j=machine.energy.energy_j(machine.env.now),
        memory_capacity_bytes=machine.memory.capacity_bytes,
        memory_peak_bytes=machine.memory.peak_bytes,
        kv_memory_peak_bytes=machine.memory.peak_of("kv"),
        **_link_over(machine.link.trace, machine.env.now),
        interrupted=interrupted,
        measured={"simulation_s": simulated_s, "bounds_s": perf_counter() - began_s - simulated_s},
    )


def machine_of(scenario: Scenario, tell: Callable[[Span], None]) -> SimMachine:
    """The modelled world of a scenario. Raises InputError for traces and cost models that do not exist."""
    load = load_trace(scenario.load) if scenario.load else None
    loaded = (scenario.load.processor if scenario.load else None) or scenario.device.main
    return SimMachine(
        scenario.device,
        scenario.model,
        link_trace(scenario.link),
        rtt_s=scenario.link.rtt_s,
        costs=pick("cost model", COST_MODELS, scenario.costs.truth),
        load={loaded: load} if load else {},
        memory_bytes=scenario.budget.memory_bytes,
        tell=tell,
    )


def price_s(scenario: Scenario, cost_model: str) -> Callable[[Op], np.ndarray]:
    """What prices ops on the idle main processor, dispatch included, by a named cost model."""
    spec = scenario.device.processors[scenario.device.main]
    costs = main_costs(cost_model, scenario.device, scenario.model)
    return lambda op: costs.durations_s(op) + spec.dispatch_s


def _drive(
    machine: SimMachine, workload: Workload, finished: Callable[[RequestRecord], None]
) -> tuple[Outcome, str, bool]:
    """Outcome, why, and whether the user stopped it."""
    if machine.weights_refused:
        return "out_of_memory", str(machine.weights_refused), False
    try:
        machine.env.run(until=machine.env.process(workload.run(machine, finished)))
    except OutOfMemory as error:
        return "out_of_memory", str(error), False
    except LinkDown as error:
        return "infeasible", str(error), False
    except KeyboardInterrupt:
        return "done", "interrupted", True
    return "done", "", False


def _with_bounds(
    scenario: Scenario, machine: SimMachine, workload: Workload, records: list[RequestRecord]
) -> list[RequestRecord]:
    """Each record with what nobody could have beaten, under the costs that the world obeyed."""
    truth_s = price_s(scenario, scenario.costs.truth)
    processor = machine.processors[scenario.device.main].available
    return [
        replace(
            record,
            bound_s=load_bound_s(
                workload.context(record.request).problem(truth_s),
                machine.link.trace,
                scenario.link.rtt_s,
                processor,
                record.arrival_s,
            ),
        )
        for record in records
    ]


def _link_over(trace: RateTrace, until_s: float) -> dict[str, tuple[float, ...]]:
    edges, rates = trace.segments(0.0, until_s) if until_s > 0 else (np.zeros(1), np.zeros(0))
    return {"link_times_s": tuple(edges.tolist()), "link_bytes_per_s": tuple(rates.tolist())}
