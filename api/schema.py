"""The JSON schemas of the files that KVFerry reads, with the names that are known here."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from kvferry.analysis.figures import FIGURES
from kvferry.analysis.search_spec import SearchSpec
from kvferry.analysis.study_spec import PLOTTED, RANGE, StudySpec
from kvferry.pipelines.plugins import use_installed
from kvferry.pipelines.policy_schema import Schema, united
from kvferry.pipelines.workload import System
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.library import BUNDLED, names
from kvferry.scenarios.resolve import extended
from kvferry.scenarios.schema import (
    DIALECT,
    KINDS_OF_FILES,
    POLICIES,
    Kind,
    axes_schema,
    definitions,
    described,
    file_schema,
    name_or_path,
    named_file,
    of_workload,
    or_null,
    scenario_schema,
    with_definitions_in_use,
)
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.base import Spec
from kvferry.specs.document import read_document
from kvferry.specs.errors import pick
from kvferry.specs.use import UseSpec
from kvferry.traces.resolve import known_traces

# Of studies and searches, which vary a scenario, by kind of file.
_VARYING: dict[str, type[Spec]] = {"study": StudySpec, "search": SearchSpec}
KINDS = (*KINDS_OF_FILES, *_VARYING, "use")


def schema(kind: str = "scenario") -> dict[str, Any]:
    """For editors: the schema of a file of this kind, one of KINDS. Names of systems, policies and cost models are
    the ones that are known here, those of plugins in use too. Raises InputError for another kind."""
    pick("kind of file", dict.fromkeys(KINDS), kind)
    use_installed()
    core = _with_names(scenario_schema())
    if kind == "use":
        use = UseSpec.model_json_schema(by_alias=True)
        use["properties"]["workload"] = {"$ref": "#/$defs/SessionSpec"}
        return with_definitions_in_use({"$schema": DIALECT, **use, "title": "KVFerry use", "$defs": definitions(core)})
    if kind not in _VARYING:
        named: Kind = kind  # type: ignore[assignment]
        return file_schema(named, core, list(_alone()))
    found = _VARYING[kind].model_json_schema(by_alias=True)
    parts = {**found.pop("$defs", {}), **definitions(core)}
    parts["Range"] = RANGE
    parts["Axes"] = axes_schema(parts, "Scenario.part", {"$ref": "#/$defs/Range"})
    axes, properties = {"$ref": "#/$defs/Axes"}, found["properties"]
    # What the axes vary need not stand in the base.
    properties["base"] = {"anyOf": [named_file("scenario"), {"$ref": "#/$defs/Scenario.part"}]}
    metric = {"anyOf": [{"enum": sorted(FIGURES)}, {"type": "string", "pattern": r"^energy_\w+_j$"}]}
    if kind == "search":
        properties["space"] = {**axes, "minProperties": 1}
        parts["ObjectiveSpec"]["properties"]["metric"] = metric
        properties["objectives"]["items"] = {"anyOf": [metric, {"$ref": "#/$defs/ObjectiveSpec"}]}
    else:
        properties["axes"], properties["zip"]["items"] = axes, axes
        parts["SampleSpec"]["properties"]["keys"] = {**axes, "minProperties": 1}
        _with_columns(parts["PlotSpec"]["properties"], metric, core["properties"])
    return with_definitions_in_use({"$schema": DIALECT, **found, "title": f"KVFerry {kind}", "$defs": parts})


def _with_columns(plot: dict[str, Any], metric: Schema, settings: Iterable[str]) -> None:
    """Lets a plot show metrics, and what stands under the keys of a scenario."""
    column = {"anyOf": [*metric["anyOf"], {"type": "string", "pattern": rf"^({'|'.join(settings)})(\.|$)"}]}
    for key, value in plot.items():
        if key in PLOTTED:
            plot[key] = {**described(value), **(column if key == "x" else {"anyOf": [column, {"type": "null"}]})}
        elif key == "parts":
            value["anyOf"][0]["items"] = column
        elif key == "pool":
            value["items"] = column


def _with_names(core: dict[str, Any]) -> dict[str, Any]:
    """The same schema with what is known by name: systems, their policies and parameters, cost models, traces."""
    properties, parts = core["properties"], core["$defs"]
    rules = []
    for kind, workload in WORKLOADS.items():
        known = {name: system.policy_schemas for name, system in workload.systems.items()}
        parts[f"{POLICIES}.{kind}"] = _policies(united(known.values()))
        said = _of_systems(workload.systems, {"$ref": f"#/$defs/{POLICIES}.{kind}"})
        rules.append({"if": _of_kind(kind), "then": {"properties": said}})
        for name, own in known.items():
            rules += _of_system(name, own, parts[f"{POLICIES}.{kind}"]["properties"])
    every = {name: one for kind in WORKLOADS.values() for name, one in kind.systems.items()}
    of_any = united(parts[f"{POLICIES}.{kind}"]["properties"] for kind in WORKLOADS)
    core["allOf"] = rules
    for key, value in _of_systems(every, {"$ref": f"#/$defs/{POLICIES}"}).items():
        properties[key] = {**described(properties[key]), **value}
    parts[POLICIES] = _policies(of_any)
    costs = {"enum": list(COST_MODELS)}
    parts["CostsSpec"]["anyOf"][0] |= costs
    for use in ("truth", "estimate"):
        parts["CostsSpec"]["anyOf"][1]["properties"][use] |= costs
    for record, traces in (
        ("LinkSpec", known_traces("bandwidth")),
        ("WaySpec", known_traces("bandwidth")),
        ("LoadSpec", known_traces("load")),
    ):
        trace = parts[record]["properties"]["trace"]
        parts[record]["properties"]["trace"] = {**trace, "anyOf": [name_or_path(traces), {"type": "null"}]}
    return core


def _of_kind(kind: str) -> Schema:
    """Holds for a scenario whose workload says this kind, or says none and extends a bundled one of this kind."""
    bundled = [name for name in names("scenario") if _kind_of(name) == kind]
    says_none = {"properties": {"workload": {"not": {"required": ["kind"]}}}}
    extends = {"properties": {"extends": {"enum": bundled}}, "required": ["extends"]}
    return {"anyOf": [of_workload(kind), {"allOf": [extends, says_none]}]}


@lru_cache(maxsize=256)
def _kind_of(name: str) -> str:
    path = BUNDLED / f"{name}.yaml"
    found = extended("scenario", read_document(path), (path,)).find(("workload", "kind"))
    return "" if found is None else str(found.value)


def _policies(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _of_systems(systems: Mapping[str, System], policies: Schema) -> dict[str, Schema]:
    """What a scenario of one of these systems can say under the keys that depend on it."""
    named = {"type": "object", "propertyNames": {"enum": list(systems)}, "additionalProperties": or_null(policies)}
    return {"system": {"enum": list(systems)}, "policies": policies, "system_policies": named}


def _of_system(name: str, known: Mapping[str, Schema], of_its_kind: Mapping[str, Schema]) -> Iterator[Schema]:
    """What holds for the policies of one system, those `known`, beside what holds for all of its kind."""
    own = {key: value for key, value in known.items() if value != of_its_kind[key]}
    policies: Schema = {"properties": own} if own else {}
    if set(known) < set(of_its_kind):
        policies["propertyNames"] = {"enum": list(known)}
    if policies:
        yield {"if": _has_system(name), "then": {"properties": {"policies": policies}}}
        yield {"if": True, "then": {"properties": {"system_policies": {"properties": {name: policies}}}}}


def _alone() -> Iterator[Schema]:
    """What holds for the policies of scenarios that say everything there is of their system in one place."""
    for workload in WORKLOADS.values():
        for name, system in workload.systems.items():
            if rules := system.policy_rules:
                together = {"properties": {"policies": {"allOf": [*rules]}}}
                nowhere_else = {"not": {"required": ["system_policies"]}}
                yield {"if": {"allOf": [_has_system(name), nowhere_else]}, "then": together}


def _has_system(name: str) -> Schema:
    return {"properties": {"system": {"const": name}}, "required": ["system"]}
