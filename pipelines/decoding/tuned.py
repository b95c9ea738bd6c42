"""A run with what ``kvferry tune`` found: the nearest solution of a file, within the memory that it was tuned for."""

from dataclasses import replace
from pathlib import Path

from kvferry.pipelines.decoding.plan import DecodePolicy
from kvferry.policies.decode.solutions import Solutions
from kvferry.specs.document import read_text
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Whose parameters are tuned.
TUNED_SYSTEM = "kvswap"
# Settings of a policy that a solution holds.
TUNED_VALUES = ("group_tokens", "selected_tokens", "compression", "metadata_share", "slots", "reuse")
# Of a file with as many solutions as there may be.
MOST_FILE_BYTES = 8_000_000


def tuned(policy: DecodePolicy, scenario: Scenario) -> tuple[DecodePolicy, float | None]:
    """The policy with what a tuning found for this batch and context, if it names one, and the bytes that every
    sequence may take then: those it was tuned for; None where the scenario's budget says. Raises InputError."""
    if policy.tuned is None:
        return policy, None
    if scenario.system != TUNED_SYSTEM:
        raise InputError(f"policies.tuned: holds parameters of {TUNED_SYSTEM}, {scenario.system} has others")
    for name in TUNED_VALUES:
        if name in scenario.policies:
            raise InputError(f"policies.{name}: policies.tuned holds it already; take one of the two away")
    try:
        found = Solutions.from_json(read_text(Path(policy.tuned), MOST_FILE_BYTES, "tuning"), policy.tuned)
        workload = scenario.workload
        grouping = found.nearest(workload.batch, workload.context, workload.output).grouping
    except InputError as error:
        raise InputError(f"policies.tuned: {error}") from None
    chosen = replace(
        policy,
        group_tokens=grouping.group_tokens,
        selected_tokens=grouping.selected_tokens,
        compression=grouping.compression,
        slots=grouping.slots or None,
        reuse=grouping.slots > 0,
    )
    # Said in bytes, the scenario's own budget holds; a share is of another context than was tuned for.
    return chosen, found.limits.each_bytes if scenario.budget.kv_bytes is None else None
