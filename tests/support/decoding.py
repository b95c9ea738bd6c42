"""Ways of decoding, as a scenario would write them, and what they hold of memory."""

from collections.abc import Iterable
from typing import Any

from kvferry.pipelines.decoding.budget import left_bytes
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.policies.decode.roles import Roles
from kvferry.policies.ledger import METADATA, Holding, Ledger
from kvferry.specs.scenario import Scenario


def roles_of(system: str, **policies: Any) -> Roles:
    """Those of a system, some of its policies replaced."""
    return DECODE_SYSTEMS[system].with_policies(policies).roles


def sum_of(holdings: Iterable[Holding]) -> float:
    """What holdings of one sequence that do not grow come to."""
    return Ledger(tuple(holdings)).n_bytes(0)


def metadata_bytes(plan: DecodePlan) -> float:
    """Of one sequence."""
    return Ledger(plan.managed.holdings).of(*METADATA).n_bytes(plan.most_tokens)


def buffer_bytes(plan: DecodePlan) -> float:
    """Of one sequence."""
    return Ledger(plan.managed.holdings).without(*METADATA).n_bytes(plan.most_tokens)


def leaving(scenario: Scenario, kv_bytes: float) -> Scenario:
    """The scenario with so much memory for KV, beside weights and workspace."""
    roles = roles_of(scenario.system, **scenario.policy_values)
    wide = scenario.model_copy(update={"budget": scenario.budget.model_copy(update={"memory_bytes": 1e9})})
    budget = scenario.budget.model_copy(update={"memory_bytes": 1e9 - left_bytes(wide, roles) + kv_bytes})
    return scenario.model_copy(update={"budget": budget})
