"""The JSON schema of what studies and searches vary: by key of a scenario, the values that may stand under it."""

import re
from typing import Any

Schema = dict[str, Any]
_REF = "#/$defs/"
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
