"""Run a scenario that decodes one long-context batch: the story around the pipelines, and what they leave behind."""

import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from kvferry.backends.sim_decode_world import sim_decode_world
from kvferry.backends.world import DecodeSizes, DecodeWorld, OpenDecodeWorld, Say
from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Span, Tell
from kvferry.pipelines.context_reuse import OutOfMemory
from kvferry.pipelines.memory_decode import InMemoryDecode
from kvferry.pipelines.offload_decode import OffloadedDecode
from kvferry.pipelines.offload_plan import DecodePlan, DecodePolicy, plan_of, shape_of
from kvferry.pipelines.offload_systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.record import Outcome, RequestRecord, Run
from kvferry.policies.offload.tuner import Solutions
from kvferry.specs.errors import InputError, MissingExtra, pick
from kvferry.specs.scenario import Scenario

# Spans of a run that are kept, for pictures: some hundred tokens of 32 layers. All are counted.
MOST_SPANS = 20_000
# Steps that are decoded where the rest may follow at their pace, and no buffer fills over the first ones.
ALIKE_STEPS = 8
# Without storage nothing is read, and groups are as good as any.
GOOD_READ_BYTES, BLOCK_BYTES = 16384, 512
# Ops of a block while decoding.
DECODING = ("Select", "Bookkeep", "Reconstruct", "DecodeAttention", "FeedForward")
Progress = Callable[[int, int], None]


def _torch_world(
    scenario: Scenario, sizes: DecodeSizes | None, tell: Tell, say: Say
) -> AbstractContextManager[DecodeWorld]:
    # Imported when asked for: torch is an extra, and takes seconds to load.
    try:
        from kvferry.backends.live.offload_world import live_decode_world
    except ImportError as error:
        raise MissingExtra(f"backend torch needs {error.name}: pip install 'kvferry[torch]'") from None

    return live_decode_world(scenario, sizes, tell, say)


DECODE_BACKENDS: dict[str, OpenDecodeWorld] = {"sim": sim_decode_world, "torch": _torch_world}


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
    workload, budget, policy = scenario.workload, scenario.budget, tuned(system.policy, scenario)
    storage = scenario.device.storage
    full_bytes = float(shape_of(scenario.model).full_bytes(workload.context))
    largest = budget.kv_bytes is not None and budget.kv_share is not None
    plan = plan_of(
        policy,
        scenario.model,
        sequences=workload.batch,
        context=workload.context,
        output=workload.output,
        budget_bytes=math.inf if largest and policy.fixed else scenario.kv_budget_bytes(full_bytes),
        good_read_bytes=GOOD_READ_BYTES if storage is None else storage.good_read_bytes,
        block_bytes=BLOCK_BYTES if storage is None else int(storage.block_bytes),
    )
    if not largest:
        return plan
    assert budget.kv_bytes is not None
    together = min(workload.batch, int(budget.kv_bytes // plan.memory_bytes))
    if not together:
        raise InputError(
            f"budget.kv: {budget.kv_bytes / 2**20:,.0f} MiB hold no sequence;"
            f" one needs {plan.memory_bytes / 2**20:,.0f} MiB"
        )
    return replace(plan, sequences=together, layout=replace(plan.layout, sequences=together))


def tuned(policy: DecodePolicy, scenario: Scenario) -> DecodePolicy:
    """The policy with what a tuning found for this batch and context, if it names one. Raises InputError."""
    if policy.tuned is None:
        return policy
    try:
        text = Path(policy.tuned).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"policies.tuned: {policy.tuned!r:.200} cannot be read: {error}") from None
    found = Solutions.from_json(text, policy.tuned).nearest(scenario.workload.batch, scenario.workload.context).grouping
    return replace(
        policy,
        group_tokens=found.group_tokens,
        selected_tokens=found.selected_tokens,
        compression=found.compression,
        slots=found.slots or None,
        reuse=found.slots > 0,
    )


def run_offload(
    scenario: Scenario,
    progress: Progress = lambda done, of: None,
    *,
    say: Say = lambda what: None,
    open_world: OpenDecodeWorld | None = None,
) -> Run:
    """Decode the scenario's batch in its backend's world; `progress` is told the tokens per sequence, `say` what is
    made ready before. `open_world` opens another world.

    Raises InputError for names and settings that do not exist or fit. Memory or storage that does not suffice is an
    outcome, told in the Run.
    """
    began_s = perf_counter()
    system = pick("system", DECODE_SYSTEMS, scenario.system).with_policies(scenario.policy_values)
    plan = plan_for(scenario, system) if system.keeps != "memory" else None
    if plan is not None and system.keeps == "swapped" and _fits(scenario):
        plan = None
    tally = Tally()
    open_world = open_world or pick("backend", DECODE_BACKENDS, scenario.backend)
    with open_world(scenario, plan, tally, say) as world:
        machine, output = world.machine, scenario.workload.output

        def told(tokens: int) -> None:
            if tokens % 16 == 0 or tokens == output:
                progress(tokens, output)

        flow: InMemoryDecode | OffloadedDecode
        if plan is None:
            flow = InMemoryDecode(
                machine,
                scenario.model,
                sequences=scenario.workload.batch,
                context=scenario.workload.context,
                output=output,
                pool_bytes=scenario.budget.in_memory_kv_bytes,
                told=told,
            )
        else:
            flow = OffloadedDecode(machine, plan, told)
        outcome, why, interrupted = _drive(scenario, world, flow)
        until_s = machine.env.now
        figures = _figures(scenario, flow, tally, plan, world, until_s) if outcome == "done" else {}
        times_s = tuple(flow.record.token_times_s)
        requests = tuple(
            RequestRecord(
                request=n,
                arrival_s=0.0,
                loaded_s=flow.record.prefill_s,
                first_token_s=times_s[0],
                token_times_s=times_s,
            )
            for n in range((scenario.workload.batch if plan is None else plan.sequences) if times_s else 0)
        )
        return Run(
            outcome=outcome,
            why=why,
            requests=requests,
            spans=tuple(tally.spans),
            duration_s=until_s,
            energy_j=world.energy_j(until_s),
            memory_capacity_bytes=machine.memory.capacity_bytes,
            memory_peak_bytes=machine.memory.peak_bytes,
            kv_memory_peak_bytes=machine.memory.peak_of("kv") + machine.memory.peak_of("metadata"),
            interrupted=interrupted,
            measured={"simulation_s": perf_counter() - began_s} | world.measured(),
            figures=figures,
        )


def _drive(scenario: Scenario, world: DecodeWorld, flow: InMemoryDecode | OffloadedDecode) -> tuple[Outcome, str, bool]:
    """Outcome, why, and whether the user stopped it."""
    if world.weights_refused is not None:
        return "out_of_memory", str(world.weights_refused), False
    storage = scenario.device.storage
    if isinstance(flow, OffloadedDecode) and storage is not None and storage.capacity_bytes is not None:
        file_bytes = flow.plan.layout.file_bytes
        if file_bytes > storage.capacity_bytes:
            what = f"the KV takes {file_bytes / 2**30:,.2f} GiB of storage"
            return "infeasible", f"{what}, {storage.name} holds {storage.capacity_bytes / 2**30:,.2f} GiB", False
    env = world.machine.env
    try:
        if isinstance(flow, InMemoryDecode):
            env.run(until=env.process(flow.run()))
        else:
            _reserve(world.machine, flow.plan)
            env.run(until=env.process(flow.run(_steps(scenario, flow.plan, world))))
    except OutOfMemory as error:
        return "out_of_memory", str(error), False
    except KeyboardInterrupt:
        return "done", "interrupted", True
    return "done", "", False


def _steps(scenario: Scenario, plan: DecodePlan, world: DecodeWorld) -> int:
    """Tokens per sequence that are really decoded."""
    output, decoded = scenario.workload.output, scenario.workload.decoded
    if decoded is None:
        return output
    alike = world.equal_steps and not plan.slots
    return min(output, decoded, ALIKE_STEPS) if alike else min(output, decoded)


def _fits(scenario: Scenario) -> bool:
    workload, model = scenario.workload, scenario.model
    all_bytes = workload.batch * (workload.context + workload.output) * model.kv_bytes_per_token
    full_bytes = workload.context * model.kv_bytes_per_token
    return all_bytes <= workload.batch * scenario.kv_budget_bytes(full_bytes)


def _reserve(machine: Machine, plan: DecodePlan) -> None:
    """Hold what managing the KV takes for the whole run. Raises OutOfMemory."""
    for tag, each_bytes in (("metadata", plan.metadata_bytes), ("kv", plan.buffer_bytes)):
        if isinstance(refused := machine.memory.reserve(plan.sequences * each_bytes, tag), Refused):
            raise OutOfMemory(str(refused))


def _figures(
    scenario: Scenario,
    flow: InMemoryDecode | OffloadedDecode,
    tally: Tally,
    plan: DecodePlan | None,
    world: DecodeWorld,
    until_s: float,
) -> dict[str, float]:
    """``block_s``: TPOT over layers. ``io_to_compute``: time in reads over time in a block's ops, both while decoding.
    Throughput counts all sequences' tokens, over the time spent decoding (``measure: decode``) or all of it."""
    record, workload = flow.record, scenario.workload
    if len(record.token_times_s) < 2:
        return {}
    steps = workload.output - 1
    batch = workload.batch if plan is None else plan.sequences
    if isinstance(flow, InMemoryDecode):
        decoding_s = sum(sum(steps_s) for _, steps_s in flow.waves)
        tpot_s = sum(n * sum(steps_s) for n, steps_s in flow.waves) / batch / max(1, steps)
        prefill_s = until_s - decoding_s
    else:
        steps_s = np.diff(record.token_times_s)
        rest = steps - len(steps_s)
        decoding_s = float(steps_s.sum() + rest * steps_s[len(steps_s) // 2 :].mean())
        tpot_s = decoding_s / steps
        prefill_s = record.token_times_s[0]
    total_s = decoding_s if scenario.measure == "decode" else decoding_s + prefill_s
    tokens = batch * (steps if scenario.measure == "decode" else workload.output)
    figures = {
        "throughput_tokens_per_s": tokens / total_s,
        "seconds_per_token": total_s / tokens,
        "tpot_s": tpot_s,
        "block_s": tpot_s / scenario.model.layers,
        "batch": float(batch),
        "tokens_decoded": float(len(record.token_times_s)),
        "read_bytes": tally.n_bytes["storage", "Read"],
        "write_bytes": tally.n_bytes["storage", "Write"],
        "storage_utilisation": world.storage_utilisation(until_s),
    }
    reading_s = tally.busy_s["storage", "Read"]
    computing_s = sum(tally.busy_s[scenario.device.main, label] for label in DECODING)
    if reading_s and computing_s:
        figures["io_to_compute"] = reading_s / computing_s
    if record.units_wanted and plan is not None and plan.slots:
        figures["reuse_rate"] = record.units_reused / record.units_wanted
    return figures
