"""What a decode scenario grants a sequence of memory for its KV, and how many sequences decode together."""

from kvferry.specs.errors import InputError
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


def fitting_batch(scenario: Scenario, each_bytes: float, whole_bytes: float, key: str) -> int:
    """How many sequences decode together when each takes `each_bytes` of `whole_bytes`: as many as asked, or with `max`
    as many as fit. Raises InputError, which names `key`, when asked for more than fit, or when not even one does."""
    asked = scenario.decode.workload.batch
    fit = min(MOST_BATCH, int(whole_bytes // each_bytes))
    if not fit:
        raise InputError(f"{key}: {shown_size(whole_bytes)} hold no sequence; one needs {shown_size(each_bytes)}")
    if asked == "max":
        return fit
    if asked > fit:
        raise InputError(
            f"{key}: {shown_size(whole_bytes)} hold {fit} sequences of {shown_size(each_bytes)} each,"
            f" workload.batch asks for {asked}; batch: max takes as many as fit"
        )
    return asked
