"""Run a scenario that decodes one long-context batch: the story around the pipelines, and what they leave behind."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from kvferry.backends.simulated import SimMachine
from kvferry.machine.machine import Refused
from kvferry.machine.ops import Select
from kvferry.machine.span import Span
from kvferry.pipelines.context_reuse import OutOfMemory
from kvferry.pipelines.memory_decode import InMemoryDecode
from kvferry.pipelines.offload_decode import OffloadedDecode
from kvferry.pipelines.offload_plan import DecodePlan, plan_of, shape_of
from kvferry.pipelines.offload_systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.record import Outcome, RequestRecord, Run
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.critical_tokens import CriticalTokens, RecordedSelections
from kvferry.traces.resolve import link_trace

# Spans of a run that are kept, for pictures: some hundred tokens of 32 layers. All are counted.
MOST_SPANS = 20_000
Progress = Callable[[int, int], None]


class Tally:
    """Counts every span by resource and label, and keeps the first ones."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # By resource and label.
        self.busy_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.n_bytes: defaultdict[tuple[str, str], float] = defaultdict(float)

    def __call__(self, span: Span) -> None:
        key = span.resource, span.label
        self.busy_s[key] += span.end_s - span.start_s
        self.n_bytes[key] += span.n_bytes
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)


def plan_for(scenario: Scenario, system: DecodeSystem) -> DecodePlan:
    """What a system would do in a scenario. Raises InputError."""
    workload = scenario.workload
    full_bytes = float(shape_of(scenario.model).full_bytes(workload.context))
    return plan_of(
        system.policy,
        scenario.model,
        sequences=workload.batch,
        context=workload.context,
        output=workload.output,
        budget_bytes=scenario.kv_budget_bytes(full_bytes),
    )


def run_offload(scenario: Scenario, progress: Progress = lambda done, of: None) -> Run:
    """Decode the scenario's batch in the modelled world; `progress` is told the tokens per sequence.

    Raises InputError for names and settings that do not exist or fit. Memory or storage that does not suffice is an
    outcome, told in the Run.
    """
    began_s = perf_counter()
    system = pick("system", DECODE_SYSTEMS, scenario.system).with_policies(scenario.policy_values)
    plan = plan_for(scenario, system) if system.keeps != "memory" else None
    if plan is not None and system.keeps == "swapped" and _fits(scenario):
        plan = None
    tally = Tally()
    machine = SimMachine(
        scenario.device,
        scenario.model,
        link_trace(scenario.link),
        costs=pick("cost model", COST_MODELS, scenario.costs.truth),
        memory_bytes=scenario.budget.memory_bytes,
        selections=None if plan is None else _selections(scenario, plan),
        tell=tally,
    )
    output = scenario.workload.output

    def told(tokens: int) -> None:
        if tokens % 16 == 0 or tokens == output:
            progress(tokens, output)

    outcome: Outcome = "done"
    why, interrupted = "", False
    flow: InMemoryDecode | OffloadedDecode
    if plan is None:
        pool_bytes = scenario.budget.in_memory_kv_bytes
        flow = InMemoryDecode(
            machine,
            scenario.model,
            sequences=scenario.workload.batch,
            context=scenario.workload.context,
            output=output,
            pool_bytes=pool_bytes,
            told=told,
        )
    else:
        flow = OffloadedDecode(machine, plan, told)
    try:
        if machine.weights_refused is not None:
            raise OutOfMemory(str(machine.weights_refused))
        if isinstance(flow, InMemoryDecode):
            machine.env.run(until=machine.env.process(flow.run()))
        else:
            assert plan is not None
            _reserve(machine, plan)
            steps = min(output, scenario.workload.decoded or output)
            machine.env.run(until=machine.env.process(flow.run(steps)))
    except OutOfMemory as error:
        outcome, why = "out_of_memory", str(error)
    except KeyboardInterrupt:
        why, interrupted = "interrupted", True
    figures = _figures(scenario, flow, tally, plan, machine) if outcome == "done" else {}
    times_s = tuple(flow.record.token_times_s)
    requests = tuple(
        RequestRecord(
            request=n, arrival_s=0.0, loaded_s=flow.record.prefill_s, first_token_s=times_s[0], token_times_s=times_s
        )
        for n in range(scenario.workload.batch if times_s else 0)
    )
    return Run(
        outcome=outcome,
        why=why,
        requests=requests,
        spans=tuple(tally.spans),
        duration_s=machine.env.now,
        energy_j=machine.energy.energy_j(machine.env.now),
        memory_capacity_bytes=machine.memory.capacity_bytes,
        memory_peak_bytes=machine.memory.peak_bytes,
        kv_memory_peak_bytes=machine.memory.peak_of("kv") + machine.memory.peak_of("metadata"),
        interrupted=interrupted,
        measured={"simulation_s": perf_counter() - began_s},
        figures=figures,
    )


def _fits(scenario: Scenario) -> bool:
    workload, model = scenario.workload, scenario.model
    all_bytes = workload.batch * (workload.context + workload.output) * model.kv_bytes_per_token
    full_bytes = workload.context * model.kv_bytes_per_token
    return all_bytes <= workload.batch * scenario.kv_budget_bytes(full_bytes)


def _selections(scenario: Scenario, plan: DecodePlan) -> Callable[[Select], np.ndarray] | None:
    workload = scenario.workload
    if plan.selected is None:
        return None
    if workload.selections is not None:
        return RecordedSelections.load(Path(workload.selections), plan.sequences)
    try:
        return CriticalTokens(
            layers=plan.shape.layers,
            sequences=plan.sequences,
            heads=plan.heads,
            context=plan.context,
            selected=plan.selected * plan.policy.group_tokens,
            group_tokens=plan.policy.group_tokens,
            overlap=workload.overlap,
            skew=workload.skew,
            seed=scenario.seed,
        )
    except ValueError as error:
        raise InputError(f"workload: {error}") from None


def _reserve(machine: SimMachine, plan: DecodePlan) -> None:
    """Hold what managing the KV takes for the whole run. Raises OutOfMemory."""
    for tag, each_bytes in (("metadata", plan.metadata_bytes), ("kv", plan.buffer_bytes)):
        if isinstance(refused := machine.memory.reserve(plan.sequences * each_bytes, tag), Refused):
            raise OutOfMemory(str(refused))


def _figures(
    scenario: Scenario,
    flow: InMemoryDecode | OffloadedDecode,
    tally: Tally,
    plan: DecodePlan | None,
    machine: SimMachine,
) -> dict[str, float]:
    """Throughput counts all sequences' tokens, over the time spent decoding (``measure: decode``) or all of it."""
    record, workload = flow.record, scenario.workload
    if len(record.token_times_s) < 2:
        return {}
    steps = workload.output - 1
    if isinstance(flow, InMemoryDecode):
        decoding_s = sum(sum(steps_s) for _, steps_s in flow.waves)
        tpot_s = sum(n * sum(steps_s) for n, steps_s in flow.waves) / workload.batch / max(1, steps)
        prefill_s = machine.env.now - decoding_s
    else:
        steps_s = np.diff(record.token_times_s)
        rest = steps - len(steps_s)
        decoding_s = float(steps_s.sum() + rest * steps_s[len(steps_s) // 2 :].mean())
        tpot_s = decoding_s / steps
        prefill_s = record.token_times_s[0]
    total_s = decoding_s if scenario.measure == "decode" else decoding_s + prefill_s
    tokens = workload.batch * (steps if scenario.measure == "decode" else workload.output)
    figures = {
        "throughput_tokens_per_s": tokens / total_s,
        "tpot_s": tpot_s,
        "batch": float(workload.batch),
        "tokens_decoded": float(len(record.token_times_s)),
        "read_bytes": tally.n_bytes["storage", "Read"],
        "write_bytes": tally.n_bytes["storage", "Write"],
        "storage_utilisation": machine.storage.busy.utilisation(0.0, machine.env.now) if machine.storage else 0.0,
    }
    if record.units_wanted and plan is not None and plan.slots:
        figures["reuse_rate"] = record.units_reused / record.units_wanted
    return figures
