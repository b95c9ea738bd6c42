"""Runs that have work in common, which a process does once."""

import hashlib

from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.specs.errors import KvferryError
from kvferry.specs.scenario import Scenario


def kin_of(scenario: Scenario) -> str:
    """Returns a text that runs have in common whose clusters come to the same while tokens are skipped, as far as a
    plan says so; sorted by it, runs with the same keys follow each other. "": it has no clusters."""
    system = DECODE_SYSTEMS.get(scenario.system)
    if scenario.workload.kind != "decode" or system is None:
        return ""
    try:
        plan = plan_for(scenario, system.with_policies(scenario.policy_values))
    except KvferryError:
        return ""
    if not isinstance(plan.layout, ClusterLayout):
        return ""
    drawn = scenario.seed, plan.rows, plan.most_tokens, plan.output
    decided = plan.layout, plan.roles.selector, plan.roles.upkeep, scenario.decode.workload
    return f"{drawn} {hashlib.sha256(repr(decided).encode()).hexdigest()[:16]}"
