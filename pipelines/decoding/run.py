"""Run a scenario that decodes one long-context batch: the story around the pipelines, and what they leave behind."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter
from typing import Any

from kvferry.backends.sim.decode_world import sim_decode_world
from kvferry.backends.world import DecodeSizes, DecodeWorld, OpenDecodeWorld, Say
from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Tell
from kvferry.pipelines.decoding.decode import OffloadedDecode
from kvferry.pipelines.decoding.figures import Decoding, Tally, Totals, decoded_of, figures_of, half_of, paces_of
from kvferry.pipelines.decoding.in_memory import InMemoryDecode
from kvferry.pipelines.decoding.plan import DecodePlan, plan_of, shape_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.decoding.tuned import tuned
from kvferry.pipelines.loading.reuse import OutOfMemory
from kvferry.pipelines.record import Outcome, RequestRecord, Run
from kvferry.specs.errors import InputError, MissingExtra, pick
from kvferry.specs.scenario import Scenario

# Steps that are decoded where the rest may follow at their pace, and no buffer fills over the first ones.
ALIKE_STEPS = 8
# Without storage nothing is read, and groups are as good as any.
GOOD_READ_BYTES, BLOCK_BYTES = 16384, 512
Progress = Callable[[int, int], None]


def _torch_world(
    scenario: Scenario, sizes: DecodeSizes | None, tell: Tell, say: Say
) -> AbstractContextManager[DecodeWorld]:
    # Imported when asked for: torch is an extra, and takes seconds to load.
    try:
        from kvferry.backends.live.decoding.world import live_decode_world
    except ImportError as error:
        raise MissingExtra(f"backend torch needs {error.name}: pip install 'kvferry[torch]'") from None

    return live_decode_world(scenario, sizes, tell, say)


DECODE_BACKENDS: dict[str, OpenDecodeWorld] = {"sim": sim_decode_world, "torch": _torch_world}


def plan_for(scenario: Scenario, system: DecodeSystem) -> DecodePlan:
    """What a system would do in a scenario. Raises InputError."""
    workload, budget = scenario.workload, scenario.budget
    policy, tuned_bytes = tuned(system.policy, scenario)
    storage = scenario.device.storage
    full_bytes = float(shape_of(scenario.model).full_bytes(workload.context))
    largest = budget.kv_bytes is not None and budget.kv_share is not None
    each_bytes = math.inf if largest and policy.fixed else tuned_bytes or scenario.kv_budget_bytes(full_bytes)
    budget_key = "budget.kv_share" if budget.kv_share is not None or budget.kv_bytes is None else "budget.kv"
    plan = plan_of(
        policy,
        scenario.model,
        sequences=workload.batch,
        context=workload.context,
        output=workload.output,
        budget_bytes=each_bytes,
        good_read_bytes=GOOD_READ_BYTES if storage is None else storage.good_read_bytes,
        block_bytes=BLOCK_BYTES if storage is None else int(storage.block_bytes),
        budget_key="policies.tuned" if tuned_bytes else budget_key,
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
    if plan is not None and system.keeps == "swapped":
        full_bytes = plan.shape.full_bytes(plan.context)
        plan = replace(plan, mapped_bytes=plan.sequences * scenario.kv_budget_bytes(full_bytes))
    tally = Tally()
    open_world = open_world or pick("backend", DECODE_BACKENDS, scenario.backend)
    with open_world(scenario, plan, tally, say) as world:
        machine, output = world.machine, scenario.workload.output
        steps = output if plan is None else _steps(scenario, plan, world)
        # As the second half of what is decoded begins, where the rest follows at its pace.
        half: Totals | None = None

        def told(tokens: int) -> None:
            nonlocal half
            if steps < output and tokens == half_of(steps) + 1:
                half = Totals.of(scenario, world, tally, flow.record)
            if tokens % 16 == 0 or tokens == output:
                progress(tokens, output)

        flow: Decoding
        batch = scenario.workload.batch if plan is None else plan.sequences
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
        outcome, why = _drive(scenario, world, flow, steps)
        told_by_world = world.measured()
        whole = Totals.of(scenario, world, tally, flow.record)
        figures: dict[str, float] = {}
        interrupted = outcome == "interrupted"
        paces = paces_of(scenario, flow, batch, half, whole, interrupted=interrupted)
        if paces is not None and outcome in ("done", "interrupted"):
            whole = paces.totals
            figures = figures_of(scenario, flow, paces) | _counted(told_by_world)
        times_s = tuple(flow.record.token_times_s)
        requests = tuple(
            RequestRecord(
                request=n,
                arrival_s=0.0,
                loaded_s=flow.record.prefill_s,
                first_token_s=times_s[0],
                token_times_s=times_s,
            )
            for n in range(batch if times_s else 0)
        )
        return Run(
            outcome=outcome,
            why=why,
            requests=requests,
            spans=tuple(tally.spans),
            duration_s=machine.env.now,
            energy_j=dict(whole.energy_j),
            memory_capacity_bytes=machine.memory.capacity_bytes,
            memory_peak_bytes=machine.memory.peak_bytes,
            kv_memory_peak_bytes=machine.memory.peak_of("kv") + machine.memory.peak_of("metadata"),
            interrupted=interrupted,
            measured={"simulation_s": perf_counter() - began_s} | told_by_world,
            figures=figures,
        )


def _drive(scenario: Scenario, world: DecodeWorld, flow: Decoding, steps: int) -> tuple[Outcome, str]:
    """Outcome and why, after so many tokens of each sequence; interrupted, what there is by then."""
    if world.weights_refused is not None:
        return "out_of_memory", str(world.weights_refused)
    storage = scenario.device.storage
    if isinstance(flow, OffloadedDecode) and storage is not None and storage.capacity_bytes is not None:
        file_bytes = flow.plan.layout.file_bytes
        if file_bytes > storage.capacity_bytes:
            what = f"the KV takes {file_bytes / 2**30:,.2f} GiB of storage"
            return "infeasible", f"{what}, {storage.name} holds {storage.capacity_bytes / 2**30:,.2f} GiB"
    env = world.machine.env
    try:
        if isinstance(flow, InMemoryDecode):
            env.run(until=env.process(flow.run()))
        else:
            _reserve(world.machine, flow.plan)
            env.run(until=env.process(flow.run(steps)))
    except OutOfMemory as error:
        return "out_of_memory", str(error)
    except KeyboardInterrupt:
        return "interrupted", decoded_of(flow, scenario.workload.batch, scenario.workload.output)
    return "done", ""


def _steps(scenario: Scenario, plan: DecodePlan, world: DecodeWorld) -> int:
    """Tokens per sequence that are really decoded."""
    output, decoded = scenario.workload.output, scenario.workload.decoded
    if decoded is None:
        return output
    alike = world.equal_steps and not plan.slots
    return min(output, decoded, ALIKE_STEPS) if alike else min(output, decoded)


def _counted(told: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of what a world tells. What managing the KV really took goes before what was reserved for it."""
    numbers = {name: float(value) for name, value in told.items() if isinstance(value, int | float)}
    if "kv_metadata_bytes" in numbers:
        numbers["kv_memory_peak_bytes"] = numbers["kv_metadata_bytes"] + numbers["kv_buffer_bytes"]
    return numbers


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
