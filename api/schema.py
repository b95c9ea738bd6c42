"""The JSON schema of scenario files, with the names that are known here."""

from typing import Any

from kvferry.pipelines.plugin_kinds import names_by_kind
from kvferry.pipelines.plugins import use_installed
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import scenario_schema


def schema() -> dict[str, Any]:
    """For completion in editors: examples are systems, policies and cost models, those of plugins in use too."""
    use_installed()
    found, known = scenario_schema(), names_by_kind()
    properties, parts = found["properties"], found["$defs"]
    properties["system"]["examples"] = [name for kind in WORKLOADS.values() for name in kind.systems]
    costs = known.pop("cost-model")
    parts["CostsSpec"]["anyOf"][0]["examples"] = costs
    for use in ("truth", "estimate"):
        parts["CostsSpec"]["anyOf"][1]["properties"][use]["examples"] = costs
    policy = {"$ref": "#/$defs/PolicySpec"}
    properties["policies"]["properties"] = {
        role: {"anyOf": [{"type": ["string", "null"], "examples": names}, policy]} for role, names in known.items()
    }
    return found
