"""A run with what ``kvferry tune`` found: the nearest solution of a file, within the memory that it was tuned for."""

from dataclasses import replace
from pathlib import Path

from kvferry.pipelines.decoding.budget import asked_batch
from kvferry.pipelines.decoding.systems import DecodeSystem
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.grouping import Grouping
from kvferry.policies.decode.residency import DoubleBuffer, Reuse
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.solutions import Solutions
from kvferry.specs.document import read_text
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Settings of a policy that a solution holds.
TUNED_VALUES = ("group_tokens", "selected_tokens", "compression", "metadata_share", "slots", "reuse")
# Roles that hold them.
TUNED_ROLES = ("selector", "residency", "layout")
# A file with as many solutions as there may be has this size.
MOST_FILE_BYTES = 8_000_000


def tuned(system: DecodeSystem, scenario: Scenario) -> tuple[DecodeSystem, float | None]:
    """Returns the system with what a tuning found for this batch and context, if it names one, and the bytes that every
    sequence may take then: those it was tuned for; None where the scenario's budget says. Raises InputError."""
    if system.tuned is None:
        return system, None
    for name in (*TUNED_VALUES, *TUNED_ROLES):
        if name in scenario.policy_values:
            raise InputError(f"policies.{name}: policies.tuned holds it already; take one of the two away")
    try:
        found = Solutions.from_json(read_text(Path(system.tuned), MOST_FILE_BYTES, "tuning"), system.tuned)
        away = system.roles.placement.away
        if away not in (None, found.tier):
            raise InputError(
                f"{system.tuned} was tuned for KV in {found.tier}, policies.placement has it in {away};"
                f" tune again with the same placement"
            )
        workload = scenario.decode.workload
        grouping = found.nearest(asked_batch(scenario), workload.context, workload.output).grouping
    except InputError as error:
        raise InputError(f"policies.tuned: {error}") from None
    # Said in bytes, the scenario's own budget holds; a share is of another context than was tuned for.
    return grouped(system, grouping), found.limits.each_bytes if scenario.decode.budget.kv_bytes is None else None


def grouped(system: DecodeSystem, grouping: Grouping) -> DecodeSystem:
    """Returns the system with these parameters in place of its own."""
    roles = system.roles
    assert isinstance(roles.selector, LowRankKeys)
    assert isinstance(roles.layout, TokenGroups)
    selector = replace(roles.selector, selected_tokens=grouping.selected_tokens, compression=grouping.compression)
    layout = replace(roles.layout, group_tokens=grouping.group_tokens)
    residency = Reuse(slots=grouping.slots) if grouping.slots else DoubleBuffer()
    return replace(system, roles=replace(roles, selector=selector, layout=layout, residency=residency))
