"""JSON schemas of what a scenario says of policies, made from the functions that read it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
# Of a function: by key, the schema of each of its parameters.
SchemaOf = Callable[[Callable[..., Any]], dict[str, Schema]]
_NULL: Schema = {"type": "null"}


def setting(value: Schema) -> Schema:
    """A setting as a scenario has it: its value, the same under `name`, or null for the system's own."""
    return {"anyOf": [value, _mapping({"name": value}, required=["name"]), _NULL]}


def stand_ins(makers: Mapping[str, Callable[..., Any]], schema_of: SchemaOf) -> Schema:
    """What may stand in for a role: a name of `makers`, a name with parameters of that maker, parameters without a
    name, which are the system's own policy's, or those of a file below; null for the system's own."""
    parameters = {name: schema_of(maker) for name, maker in makers.items()}
    either: list[Schema] = [{"enum": list(makers)}]
    either += [_mapping({"name": {"const": name}, **own}, required=["name"]) for name, own in parameters.items()]
    either.append({**_mapping({"name": _NULL, **united(parameters.values())}), "minProperties": 1})
    return {"anyOf": [*either, _NULL]}


def united(parameters: Iterable[Mapping[str, Schema]]) -> dict[str, Schema]:
    """Returns by key what any of these takes under it."""
    found: dict[str, list[Schema]] = {}
    for own in parameters:
        for key, value in own.items():
            known = found.setdefault(key, [])
            if value not in known:
                known.append(value)
    return {key: values[0] if len(values) == 1 else {"anyOf": values} for key, values in found.items()}


def _mapping(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), **needed, "additionalProperties": False}
