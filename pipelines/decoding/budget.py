"""What a decode scenario grants a sequence of memory for its KV, and how many sequences decode together."""

import math

from kvferry.machine.machine import Machine, Refused
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import NoRoom
from kvferry.policies.decode.placement import KvSize
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size
from kvferry.specs.workload import MOST_BATCH

# Without storage nothing is read, and groups are as good as any.
GOOD_READ_BYTES, ALIGNMENT_BYTES = 16384, 512


def asked_batch(scenario: Scenario) -> int:
    """The scenario's batch; the most there can be where it says `max`."""
    batch = scenario.decode.workload.batch
    return MOST_BATCH if batch == "max" else batch


def sequence_bytes(scenario: Scenario, batch: int) -> float:
    """Bytes that metadata and buffers of one sequence's KV may take in memory, of a batch: its share of the full cache,
    or else its part of what the budget grants to all, or of what is free."""
    workload, budget, _ = scenario.decode
    if budget.kv_share is not None:
        return budget.kv_share * float(scenario.model.kv_full_bytes(workload.context))
    return (scenario.free_bytes if budget.kv_bytes is None else budget.kv_bytes) / batch


def most_kv(scenario: Scenario) -> KvSize:
    """The size of the KV at the end of the run, and all the memory that it may take."""
    workload, layers = scenario.decode.workload, scenario.model.layers
    tokens, batch = workload.context + workload.output, asked_batch(scenario)
    return KvSize(
        layers=layers,
        tokens=tokens,
        most_tokens=tokens,
        token_bytes=batch * scenario.model.kv_bytes_per_token / layers,
        memory_bytes=batch * sequence_bytes(scenario, batch),
    )


def hold_runtime(machine: Machine, scenario: Scenario) -> None:
    """Hold what intermediate values take for the whole run. Raises OutOfMemory."""
    n_bytes = scenario.runtime_bytes
    if n_bytes and isinstance(refused := machine.memory.reserve(n_bytes, "workspace"), Refused):
        raise OutOfMemory(str(refused))


def fits(scenario: Scenario, plan: DecodePlan) -> bool:
    """Whether the budget, and the memory of device and host, hold the KV of a plan's whole output, with what manages
    it."""
    if plan.over_bytes:
        return False
    memory, most_bytes = scenario.device.memory, plan.most_bytes
    device_bytes, host_bytes = most_bytes["device"], most_bytes["host"]
    if memory.unified:
        return device_bytes + host_bytes <= scenario.free_bytes
    capacity_bytes = math.inf if memory.host_capacity_bytes is None else memory.host_capacity_bytes
    return device_bytes <= scenario.free_bytes and host_bytes <= capacity_bytes


def fitting_batch(scenario: Scenario, each_bytes: float, whole_bytes: float, key: str) -> int:
    """How many sequences decode together when each takes `each_bytes` of `whole_bytes`: as many as asked, or with `max`
    as many as fit. Raises InputError, which names `key`, when asked for more than fit; NoRoom when not one does."""
    asked = scenario.decode.workload.batch
    fit = min(MOST_BATCH, int(whole_bytes // each_bytes)) if each_bytes else MOST_BATCH
    if not fit:
        raise NoRoom(f"{key}: {shown_size(whole_bytes)} hold no sequence; one needs {shown_size(each_bytes)}")
    if asked == "max":
        return fit
    if asked > fit:
        raise InputError(
            f"{key}: {shown_size(whole_bytes)} hold {fit} sequences of {shown_size(each_bytes)} each,"
            f" workload.batch asks for {asked}; batch: max takes as many as fit"
        )
    return asked
