"""The memory that a decode scenario grants a sequence for its KV, and how many sequences decode together."""

import math
from collections.abc import Iterator

from kvferry.machine.machine import Machine
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import NoRoom
from kvferry.policies.decode.placement import KvSize
from kvferry.policies.decode.roles import Roles
from kvferry.policies.engine_memory import engine_holdings, sequences_of, split_bytes, value_bytes
from kvferry.policies.ledger import Holding, Ledger
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size
from kvferry.specs.workload import MOST_BATCH

# Without storage nothing is read, and groups are as good as any.
GOOD_READ_BYTES, ALIGNMENT_BYTES = 16384, 512


def asked_batch(scenario: Scenario) -> int:
    """Returns the scenario's batch; the most there can be where it says `max`."""
    return sequences_of(scenario)


def stopped_at_the_most(scenario: Scenario, sequences: int) -> Iterator[str]:
    """Says so where `max` took as many sequences as it ever does, and not as many as memory holds."""
    if scenario.decode.workload.batch == "max" and sequences >= MOST_BATCH:
        yield f"workload.batch: max takes {MOST_BATCH} sequences at most, whatever memory holds"


def workspace(scenario: Scenario, roles: Roles) -> tuple[Holding, ...]:
    """Returns what a way of decoding holds besides what every engine does, from beginning to end.

    Where KV leaves the processor's memory layer by layer (KVSwap 3.4), the hidden states of a whole prompt wait for the
    next layer, and KV of two layers is there: of the one that is computed, and of the one that is written out. Prompts
    of a batch are taken to pass one after the other, which takes the same time as together. At last, what a placement's
    own formula leaves to intermediate values beyond what they are known to take (SpeContext Eq. 6).
    """
    model, context = scenario.model, scenario.decode.workload.context
    sizes = dict[str, float]()
    if roles.attention.reads == "decode_attention":
        sizes["workspace: attention"] = split_bytes(model)
    if roles.placement.away is not None:
        sizes["workspace: hidden states"] = context * model.hidden * value_bytes(model)
        sizes["workspace: KV on its way out"] = 2.0 * context * model.kv_entry_bytes
    engine = Ledger(engine_holdings(scenario)).at(0)
    taken_bytes = sum(sizes.values()) + sum(n for name, n in engine.items() if name not in ("weights", "runtime"))
    reserve_bytes = roles.placement.runtime_share * model.weight_bytes - taken_bytes
    if reserve_bytes > 0:
        sizes["workspace: reserve"] = reserve_bytes
    return tuple(Holding.of(name, n_bytes) for name, n_bytes in sizes.items())


def held(scenario: Scenario, roles: Roles) -> Ledger:
    """Returns all that is in the processor's memory before any KV."""
    return Ledger((*engine_holdings(scenario), *workspace(scenario, roles)), asked_batch(scenario))


def left_bytes(scenario: Scenario, roles: Roles) -> float:
    """Returns what is left for KV and what manages it of the budget's memory, or else the device's; less than 0: what
    is lacking before any."""
    n_bytes = sum(map(math.ceil, held(scenario, roles).at(0).values()))
    return (scenario.budget.memory_bytes or scenario.device.memory.free_bytes) - n_bytes


def free_bytes(scenario: Scenario, roles: Roles) -> float:
    """Returns the memory for KV and what manages it."""
    return max(0.0, left_bytes(scenario, roles))


def sequence_bytes(scenario: Scenario, roles: Roles, batch: int) -> float:
    """Returns the bytes that metadata and buffers of one sequence's KV may take in memory, of a batch: its share of the
    full cache, or else its part of what the budget grants to all, or of what is free."""
    workload, budget, _ = scenario.decode
    if budget.kv_share is not None:
        return budget.kv_share * float(scenario.model.kv_full_bytes(workload.context))
    return (free_bytes(scenario, roles) if budget.kv_bytes is None else budget.kv_bytes) / batch


def most_kv(scenario: Scenario, roles: Roles) -> KvSize:
    """Returns the size of the KV at the end of the run, and all the memory that it may take."""
    workload, layers = scenario.decode.workload, scenario.model.layers
    tokens, batch = workload.context + workload.output, asked_batch(scenario)
    return KvSize(
        layers=layers,
        tokens=tokens,
        most_tokens=tokens,
        token_bytes=batch * scenario.model.kv_bytes_per_token / layers,
        memory_bytes=batch * sequence_bytes(scenario, roles, batch),
    )


def hold_workspace(machine: Machine, scenario: Scenario, roles: Roles) -> None:
    """Hold for the whole run what a way of decoding needs besides KV. Raises OutOfMemory."""
    refused = machine.memory.hold(Ledger(workspace(scenario, roles)).at(0))
    if refused is not None:
        raise OutOfMemory(f"{refused}; {held(scenario, roles).largest(0)}")


def over_bytes(scenario: Scenario, plan: DecodePlan) -> float:
    """Returns the bytes that the budget lacks for the KV of a plan's whole output. On unified memory what lies on the
    host takes of the same memory."""
    ledger, tokens = plan.memory.ledger, plan.most_tokens
    host_bytes = ledger.n_bytes(tokens, "host") if scenario.device.memory.unified else 0.0
    if not host_bytes:
        return plan.memory.over_bytes
    return max(0.0, ledger.n_bytes(tokens) + host_bytes - plan.sequences * plan.managed.budget_bytes)


def fits(scenario: Scenario, plan: DecodePlan) -> bool:
    """Returns whether the budget, and the memory of device and host, hold the KV of a plan's whole output, with what
    manages it."""
    if over_bytes(scenario, plan):
        return False
    memory = scenario.device.memory
    device_bytes, host_bytes = (plan.memory.ledger.n_bytes(plan.most_tokens, tier) for tier in ("device", "host"))
    granted_bytes = free_bytes(scenario, plan.roles)
    if memory.unified:
        return device_bytes + host_bytes <= granted_bytes
    capacity_bytes = math.inf if memory.host_capacity_bytes is None else memory.host_capacity_bytes
    return device_bytes <= granted_bytes and host_bytes <= capacity_bytes


def fitting_batch(scenario: Scenario, each_bytes: float, whole_bytes: float, key: str) -> int:
    """Returns how many sequences decode together when each takes `each_bytes` of `whole_bytes`: as asked, or with `max`
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
