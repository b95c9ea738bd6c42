"""A scenario as a folder of results has it."""

from typing import Any

from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import dump_scenario, dump_yaml, dumped_scenario
from kvferry.specs.scenario import Scenario


def written(scenario: Scenario) -> str:
    """Returns its YAML, with what its system's own selector leaves to one that replaces it: a reader sees both."""
    return dump_yaml(_spelt(scenario))


def _spelt(scenario: Scenario) -> Scenario:
    system = WORKLOADS[scenario.workload.kind].systems.get(scenario.system)
    staying: dict[str, Any] = getattr(system, "staying", lambda policies: {})(scenario.policy_values)
    if not staying:
        return scenario
    dumped = dump_scenario(scenario)
    own = dumped["policies"]
    holder = own if "selector" in own else dumped["system_policies"][scenario.system]
    holder["selector"] = {**holder["selector"], **staying}
    return dumped_scenario(dumped)
