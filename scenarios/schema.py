"""The JSON schemas of the files that KVFerry reads: what may be named or extended instead of written out is allowed."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from kvferry.scenarios.field_notes import add_bounds, add_notes
from kvferry.scenarios.library import PATH, names
from kvferry.specs.kinds import BY_KIND, KINDS, members
from kvferry.specs.scenario import SETTING, Scenario
from kvferry.specs.weight_format import WEIGHT_FORMATS

Schema = dict[str, Any]
Kind = Literal["scenario", "device", "storage", "model", "engine", "runtime"]
KINDS_OF_FILES: tuple[Kind, ...] = get_args(Kind)
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_RECORDS: dict[Kind, str] = {
    "scenario": "Scenario",
    "device": "DeviceSpec",
    "storage": "StorageSpec",
    "model": "ModelSpec",
    "engine": "EngineSpec",
    "runtime": "RuntimeSpec",
}
_REF = "#/$defs/"
# Of a record's definition: as a file has it that stands alone, and as one has it that extends another.
_WHOLE, _PART = ".whole", ".part"
# How names of definitions begin that say what stands under `policies`.
POLICIES = "Policies"


def scenario_schema() -> Schema:
    """What a whole scenario file says, one definition per record; ``file_schema`` is what files are held against."""
    schema = Scenario.model_json_schema(by_alias=True)
    add_notes(schema)
    add_bounds(schema)
    parts = schema["$defs"]
    for kind in ("device", "model"):
        for holder in (schema, parts["MachineSpec"]):
            either = {"anyOf": [named_file(kind), {"$ref": _REF + _RECORDS[kind]}]}
            holder["properties"][kind] = described(holder["properties"][kind]) | either
    for record in ("PrecisionSpec", "ModelSpec"):
        formats = parts[record]["properties"]["weights"]
        formats["anyOf"] = [_weight_format(), {"type": "null"}]
    parts["CostsSpec"] = {"anyOf": [{"type": ["string"], "description": "a name alone"}, parts["CostsSpec"]]}
    value = {**SETTING, "description": "a name alone, or a value"}
    parts["PolicySpec"] = {"anyOf": [value, {**parts["PolicySpec"], "minProperties": 1}]}
    for holder, parts_of_it in ((parts["DeviceSpec"], ("storage", "engine")), (schema, ("engine", "runtime"))):
        for kind in parts_of_it:
            holder["properties"][kind]["anyOf"].append(named_file(kind))
    # The workload's kind says which of these it is: a file does not say it again.
    for key, union in BY_KIND.items():
        kinds = [record.__name__ for record in members(union)]
        either = {"anyOf": [{"$ref": _REF + kind} for kind in kinds]}
        schema["properties"][key] = described(schema["properties"][key]) | either
        schema["required"].remove(key)
        for kind in kinds:
            del parts[kind]["properties"]["kind"]
    schema["required"].remove("link")
    # A file that extends another need not repeat what that one says.
    for kind, record in _RECORDS.items():
        extensible = schema if kind == "scenario" else parts[record]
        extensible["properties"]["extends"] = {**named_file(kind), "description": "a name or path to build upon"}
    return {"$schema": DIALECT, **schema, "title": "KVFerry scenario"}


def _weight_format() -> Schema:
    """A name in letters of any case, which patterns of a schema have to spell out."""
    either = ("".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in name) for name in WEIGHT_FORMATS)
    return {"type": "string", "pattern": f"^({'|'.join(either)})$", "examples": sorted(WEIGHT_FORMATS)}


def described(value: Schema) -> Schema:
    """Returns the description of a property alone."""
    return {key: item for key, item in value.items() if key == "description"}


def file_schema(kind: Kind, core: Schema, alone: Sequence[Schema] = ()) -> Schema:
    """The schema of a file of this kind. `core` is ``scenario_schema``, perhaps with more names in it, `alone` what
    holds besides for scenarios that extend no other one."""
    title = f"KVFerry {kind}"
    found = {"$schema": DIALECT, "title": title, "$ref": _REF + _RECORDS[kind], "$defs": definitions(core, alone)}
    return with_definitions_in_use(found)


def with_definitions_in_use(schema: Schema) -> Schema:
    """The schema without the definitions that nothing in it leads to."""
    known = schema["$defs"]
    used = dict[str, Schema]()
    left = [{key: value for key, value in schema.items() if key != "$defs"}]
    while left:
        for name in dict.fromkeys(references(left.pop())):
            if name not in used:
                used[name] = known[name]
                left.append(known[name])
    return {**schema, "$defs": {name: known[name] for name in known if name in used}}


def references(value: Any) -> Iterator[str]:
    """The names of the definitions that a schema refers to, in its order."""
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference.removeprefix(_REF).split("/")[0]
        for key, inner in value.items():
            if key != "discriminator":
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def definitions(core: Schema, alone: Sequence[Schema] = ()) -> Schema:
    """Every record as a file has it; NAME.part is for a file in which nothing is required, as another one is laid under
    it, and null takes a value away."""
    records = {**core["$defs"], "Scenario": _scenario_by_kind(core)}
    for key in ("policies", "machines", "system_policies"):
        # With names of policies in it, the schema says by itself which of them may be null.
        if "additionalProperties" in records["Scenario"]["properties"][key]:
            _with_null(records["Scenario"]["properties"][key])
    found: Schema = {}
    for name, record in records.items():
        # Policies may be said in parts in any file.
        found[name + _PART] = {"$ref": _REF + name} if name.startswith(POLICIES) else _part(record)
        if name not in _RECORDS.values():
            found[name] = record
            continue
        found[name + _WHOLE] = {
            **record,
            "properties": {key: value for key, value in record["properties"].items() if key != "extends"},
        }
        found[name] = {
            "if": {"required": ["extends"]},
            "then": {"$ref": f"{_REF}{name}{_PART}"},
            "else": {"$ref": f"{_REF}{name}{_WHOLE}"},
        }
    whole = found["Scenario" + _WHOLE]
    fetching = {"if": {"not": of_workload("decode")}, "then": {"required": ["link"]}}
    whole["allOf"] = [*whole["allOf"], fetching, *alone]
    return found


def named_file(kind: str) -> Schema:
    """The name or path of a file of this kind."""
    return {**name_or_path(names(kind)), "description": f"name or path of a {kind}"}


def name_or_path(known: Sequence[str]) -> Schema:
    """One of these names, or what looks like a path: a file without an ending, in the same folder, is ./FILE."""
    either = "|".join(re.sub(r"[.+]", r"\\\g<0>", name) for name in known)
    return {"type": "string", "pattern": f"^({either})$|{PATH}", "examples": list(known)}


def _scenario_by_kind(core: Schema) -> Schema:
    """The scenario, whose budget and live settings are those of its workload's kind."""
    scenario = {key: value for key, value in core.items() if key not in ("$schema", "$defs", "allOf")}
    rules = list(core.get("allOf", ()))
    for kind in KINDS:
        of_kind = {
            key: or_null({"$ref": _REF + next(one.__name__ for one in members(union) if _is_of(kind, one))})
            for key, union in BY_KIND.items()
        }
        rules.append({"if": of_workload(kind), "then": {"properties": of_kind}})
    properties = {key: or_null(value) if key in BY_KIND else value for key, value in scenario["properties"].items()}
    return {**scenario, "properties": properties, "allOf": rules}


def of_workload(kind: str) -> Schema:
    """Holds for a scenario whose workload says this kind."""
    says = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
    return {"properties": {"workload": says}, "required": ["workload"]}


def _is_of(kind: str, record: Any) -> bool:
    return bool(kind in get_args(record.model_fields["kind"].annotation))


def _with_null(named: Schema) -> None:
    """Lets null take away what stands under a name."""
    inner = named["additionalProperties"]
    if "additionalProperties" in inner:
        _with_null(inner)
    named["additionalProperties"] = {"anyOf": [inner, {"type": "null"}]}


def _part(record: Schema) -> Schema:
    """The same record where another one is laid under it."""
    return _relaxed({key: value for key, value in record.items() if key != "required"})


def _relaxed(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    found: Schema = {}
    for key, value in part.items():
        if key == "$ref":
            found[key] = value + _PART
        elif key in ("anyOf", "oneOf"):
            # What says which keys are needed does not hold; kinds that are not named may be any.
            if not all(set(one) <= {"required", "properties"} for one in value):
                found["anyOf"] = [_relaxed({k: v for k, v in one.items() if k != "required"}) for one in value]
        elif key == "properties":
            found[key] = {name: or_null(_relaxed(one)) for name, one in value.items()}
        elif key == "additionalProperties":
            found[key] = or_null(_relaxed(value)) if isinstance(value, dict) else value
        elif key == "allOf":
            found[key] = [{**one, "then": _relaxed(one["then"])} for one in value]
        elif key not in ("discriminator", "minProperties"):
            # Items of a list are not laid over others: a list replaces a list.
            found[key] = value
    return found


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    about: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    return {"anyOf": [schema, {"type": "null"}], **about}


_ANY_NAME = "[^.]+"


def axes_schema(definitions: Schema, record: str, ranges: Schema) -> Schema:
    """A mapping from dotted keys of that record of the definitions (`link.rate`, `machines.cloud.device`) to a list of
    values, or to what `ranges` allows."""
    found: dict[str, list[Schema]] = {}
    _walk(definitions, _REF + record, definitions[record], "", found, ())
    patterns = {
        f"^{key}$": {"anyOf": [{"type": "array", "minItems": 1, "items": {"anyOf": values}}, ranges]}
        for key, values in found.items()
    }
    return {"type": "object", "patternProperties": patterns, "additionalProperties": False}


def _walk(
    definitions: Schema, at: str, part: Any, key: str, found: dict[str, list[Schema]], above: tuple[str, ...]
) -> None:
    """Notes under each key below `key`, as a regular expression, where in the schema its values are described."""
    if not isinstance(part, dict):
        return
    if (reference := part.get("$ref", "")) and reference not in above:
        name = reference.removeprefix(_REF)
        _walk(definitions, reference, definitions[name], key, found, (*above, reference))
    for n, one in enumerate(part.get("anyOf", ())):
        _walk(definitions, f"{at}/anyOf/{n}", one, key, found, above)
    below = {f"properties/{name}": (_literal(name), one) for name, one in part.get("properties", {}).items()}
    if isinstance(others := part.get("additionalProperties"), dict):
        named = part.get("propertyNames", {}).get("enum")
        below["additionalProperties"] = (f"({'|'.join(map(_literal, named))})" if named else _ANY_NAME, others)
    if isinstance(items := part.get("items"), dict):
        below["items"] = ("[0-9]+", items)
    for place, (name, one) in below.items():
        inner = f"{key}\\.{name}" if key else name
        where = {"$ref": f"{at}/{place}"}
        if where not in found.setdefault(inner, []):
            found[inner].append(where)
            _walk(definitions, f"{at}/{place}", one, inner, found, above)


def _literal(name: str) -> str:
    return re.sub(r"[.+]", r"\\\g<0>", name)
