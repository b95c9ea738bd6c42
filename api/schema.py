"""The JSON schemas of the files that KVFerry reads, with the names that are known here."""

from collections.abc import Mapping
from typing import Any

from kvferry.analysis.figures import FIGURES
from kvferry.analysis.search_spec import SearchSpec
from kvferry.analysis.study_spec import StudySpec
from kvferry.pipelines.plugin_kinds import names_by_kind
from kvferry.pipelines.plugins import use_installed
from kvferry.pipelines.workload import System
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.schema import (
    DIALECT,
    KINDS_OF_FILES,
    Kind,
    definitions,
    file_schema,
    of_workload,
    scenario_schema,
)
from kvferry.specs.base import Spec
from kvferry.specs.errors import pick

# Of studies and searches, which vary a scenario, by kind of file.
_VARYING: dict[str, type[Spec]] = {"study": StudySpec, "search": SearchSpec}
KINDS = (*KINDS_OF_FILES, *_VARYING)


def schema(kind: str = "scenario") -> dict[str, Any]:
    """For editors: the schema of a file of this kind, one of KINDS. Names of systems, policies and cost models are
    the ones that are known here, those of plugins in use too. Raises InputError for another kind."""
    pick("kind of file", dict.fromkeys(KINDS), kind)
    use_installed()
    core = _with_names(scenario_schema())
    if kind not in _VARYING:
        named: Kind = kind  # type: ignore[assignment]
        return file_schema(named, core)
    found = _VARYING[kind].model_json_schema(by_alias=True)
    # What the axes vary need not stand in the base.
    base = {
        "anyOf": [{"type": "string", "description": "name or path of a scenario"}, {"$ref": "#/$defs/Scenario.part"}]
    }
    found["properties"]["base"] = base
    if kind == "search":
        metric = {"anyOf": [{"enum": sorted(FIGURES)}, {"type": "string", "pattern": r"^energy_\w+_j$"}]}
        found["$defs"]["ObjectiveSpec"]["properties"]["metric"] = metric
        found["properties"]["objectives"]["items"] = {"anyOf": [metric, {"$ref": "#/$defs/ObjectiveSpec"}]}
    found["$defs"] = {**found.get("$defs", {}), **definitions(core)}
    return {"$schema": DIALECT, **found, "title": f"KVFerry {kind}"}


def _with_names(core: dict[str, Any]) -> dict[str, Any]:
    known = names_by_kind()
    properties, parts = core["properties"], core["$defs"]
    of_kinds = {name: _of_systems(kind.systems) for name, kind in WORKLOADS.items()}
    core["allOf"] = [{"if": of_workload(name), "then": {"properties": said}} for name, said in of_kinds.items()]
    every = _of_systems({name: one for kind in WORKLOADS.values() for name, one in kind.systems.items()})
    properties["system"] |= every["system"]
    properties["policies"] |= every["policies"]
    properties["system_policies"]["propertyNames"] = every["system_policies"]["propertyNames"]
    properties["system_policies"]["additionalProperties"] |= every["policies"]
    costs = known.pop("cost-model")
    parts["CostsSpec"]["anyOf"][0]["examples"] = costs
    for use in ("truth", "estimate"):
        parts["CostsSpec"]["anyOf"][1]["properties"][use]["examples"] = costs
    properties["policies"]["properties"] = {
        role: {"anyOf": [{"enum": [*names, None]}, {"type": "object", "properties": {"name": {"enum": names}}}]}
        for role, names in known.items()
    }
    return core


def _of_systems(systems: Mapping[str, System]) -> dict[str, Any]:
    """What a scenario of one of these systems can say under the keys that depend on it."""
    keys = {"enum": sorted(frozenset().union(*(one.policy_keys for one in systems.values())))}
    named = {"propertyNames": {"enum": list(systems)}, "additionalProperties": {"propertyNames": keys}}
    return {"system": {"enum": list(systems)}, "policies": {"propertyNames": keys}, "system_policies": named}
