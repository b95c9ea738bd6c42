"""The JSON schemas of the files that KVFerry reads: what may be named or extended instead of written out is allowed."""

from typing import Any, Literal, get_args

from kvferry.scenarios.field_notes import add_bounds, add_notes
from kvferry.scenarios.library import names
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


def scenario_schema() -> Schema:
    """What a whole scenario file says, one definition per record; ``file_schema`` is what files are held against."""
    schema = Scenario.model_json_schema(by_alias=True)
    add_notes(schema)
    add_bounds(schema)
    parts = schema["$defs"]
    for kind in ("device", "model"):
        for holder in (schema, parts["MachineSpec"]):
            either = {"anyOf": [_named(kind), {"$ref": _REF + _RECORDS[kind]}]}
            holder["properties"][kind] = _described(holder["properties"][kind]) | either
    for record in ("PrecisionSpec", "ModelSpec"):
        formats = parts[record]["properties"]["weights"]
        formats["anyOf"] = [_weight_format(), {"type": "null"}]
    parts["CostsSpec"] = {"anyOf": [{"type": ["string"], "description": "a name alone"}, parts["CostsSpec"]]}
    value = {**SETTING, "description": "a name alone, or a value"}
    parts["PolicySpec"] = {"anyOf": [value, {**parts["PolicySpec"], "minProperties": 1}]}
    for holder, described in ((parts["DeviceSpec"], ("storage", "engine")), (schema, ("engine", "runtime"))):
        for kind in described:
            holder["properties"][kind]["anyOf"].append(_named(kind))
    # The workload's kind says which of these it is: a file does not say it again.
    for key, union in BY_KIND.items():
        kinds = [record.__name__ for record in members(union)]
        either = {"anyOf": [{"$ref": _REF + kind} for kind in kinds]}
        schema["properties"][key] = _described(schema["properties"][key]) | either
        schema["required"].remove(key)
        for kind in kinds:
            del parts[kind]["properties"]["kind"]
    # A file that extends another need not repeat what that one says.
    for extensible in (schema, *(parts[_RECORDS[kind]] for kind in _RECORDS if kind != "scenario")):
        extensible["properties"]["extends"] = {"type": "string", "description": "a name or path to build upon"}
    return {"$schema": DIALECT, **schema, "title": "KVFerry scenario"}


def _weight_format() -> Schema:
    """A name in letters of any case, which patterns of a schema have to spell out."""
    either = ("".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in name) for name in WEIGHT_FORMATS)
    return {"type": "string", "pattern": f"^({'|'.join(either)})$", "examples": sorted(WEIGHT_FORMATS)}


def _described(value: Schema) -> Schema:
    """Returns the description of a property alone."""
    return {key: item for key, item in value.items() if key == "description"}


def file_schema(kind: Kind, core: Schema) -> Schema:
    """The schema of a file of this kind. `core` is ``scenario_schema``, perhaps with more names in it."""
    title = f"KVFerry {kind}"
    return {"$schema": DIALECT, "title": title, "$ref": _REF + _RECORDS[kind], "$defs": definitions(core)}


def definitions(core: Schema) -> Schema:
    """Every record as a file has it; NAME.part is for a file in which nothing is required, as another one is laid under
    it, and null takes a value away."""
    records = {**core["$defs"], "Scenario": _scenario_by_kind(core)}
    for key in ("policies", "machines", "system_policies"):
        _with_null(records["Scenario"]["properties"][key])
    found: Schema = {}
    for name, record in records.items():
        found[name + _PART] = _part(record)
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
    return found


def _named(kind: str) -> Schema:
    return {"type": "string", "examples": names(kind), "description": f"name or path of a {kind}"}


def _scenario_by_kind(core: Schema) -> Schema:
    """The scenario, whose budget and live settings are those of its workload's kind."""
    scenario = {key: value for key, value in core.items() if key not in ("$schema", "$defs", "allOf")}
    rules = list(core.get("allOf", ()))
    for kind in KINDS:
        of_kind = {
            key: _or_null({"$ref": _REF + next(one.__name__ for one in members(union) if _is_of(kind, one))})
            for key, union in BY_KIND.items()
        }
        rules.append({"if": of_workload(kind), "then": {"properties": of_kind}})
    properties = {key: _or_null(value) if key in BY_KIND else value for key, value in scenario["properties"].items()}
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
            found[key] = {name: _or_null(_relaxed(one)) for name, one in value.items()}
        elif key == "additionalProperties":
            found[key] = _or_null(_relaxed(value)) if isinstance(value, dict) else value
        elif key == "allOf":
            found[key] = [{**one, "then": _relaxed(one["then"])} for one in value]
        elif key not in ("discriminator", "minProperties"):
            # Items of a list are not laid over others: a list replaces a list.
            found[key] = value
    return found


def _or_null(schema: Schema) -> Schema:
    about: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    return {"anyOf": [schema, {"type": "null"}], **about}
