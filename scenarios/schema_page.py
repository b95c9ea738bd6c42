"""The JSON schema of a scenario file as a page: every key with what it takes, what it means and its default."""

import json
import re
from typing import Any

from kvferry.scenarios.schema import references, scenario_schema

_REFERENCE = "#/$defs/"
# Names of bundled devices and models are listed by commands; a page shows the first few.
_MOST_EXAMPLES = 3
_HEAD = """# Every key of a scenario

This page is made from the schema that `kvferry schema` prints. [Scenarios](scenarios.md) explains the keys in their
context; physical values carry a unit (`4 ms`, `24 KiB`, `850 Mbit/s`), counts may carry their noun (`32Ki tokens`).
"""


def schema_page() -> str:
    """Markdown: a section for the scenario and for each record in it, with a table of its keys."""
    schema = scenario_schema()
    places = _places(schema)
    keys = list(_properties(schema))
    # What lies in a key follows it.
    inner = sorted(places.items(), key=lambda one: (keys.index(re.split(r"[. ]", one[1])[0]), one[1].count(".")))
    sections = [_section("scenario", schema, places)]
    sections += [_section(place, schema["$defs"][name], places) for name, place in inner]
    return "\n".join([_HEAD, *sections])


def _places(schema: dict[str, Any]) -> dict[str, str]:
    """By record, in the order of a scenario: the first key that holds it, and its kind where that tells it apart."""
    parts, found = schema["$defs"], dict[str, str]()
    left = [("", "scenario", schema)]
    while left:
        at, holder, part = left.pop(0)
        for key, value in _properties(part).items():
            records = list(references(value))
            for name in records:
                if name not in found:
                    place = f"{at}.{key}" if at else key
                    if len(records) > 1:
                        found[name] = f"{place} ({_kind(name)})"
                    else:
                        found[name] = f"{place} ({_kind(holder)})" if place in found.values() else place
                    left.append((place, name, parts[name]))
    return found


def _kind(record: str) -> str:
    """ "context-reuse" of ContextReuseLive."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", re.sub("(Spec|Live|Budget)$", "", record)).lower()


def _properties(part: dict[str, Any]) -> dict[str, Any]:
    if "properties" in part:
        return dict(part["properties"])
    return dict(next((one["properties"] for one in part.get("anyOf", ()) if "properties" in one), {}))


def _section(place: str, part: dict[str, Any], places: dict[str, str]) -> str:
    required = {*part.get("required", ()), *(key for one in part.get("anyOf", ()) for key in one.get("required", ()))}
    rows = [
        f"| `{key}` | {_takes(value, places)} | {_default(key, value, required)} | {_about(value)} |"
        for key, value in _properties(part).items()
    ]
    return "\n".join(
        [f"## {place}", "", _about(part), "", "| key | takes | default | meaning |", "|---|---|---|---|", *rows, ""]
    )


def _default(key: str, value: dict[str, Any], required: set[str]) -> str:
    if "default" in value:
        return "none" if value["default"] is None else f"`{json.dumps(value['default'])}`"
    return "required" if key in required and key != "extends" else ""


def _takes(value: dict[str, Any], places: dict[str, str]) -> str:
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(dict.fromkeys(_takes(one, places) for one in value[key] if one.get("type") != "null"))
    if "$ref" in value:
        place = places[value["$ref"].removeprefix(_REFERENCE)]
        return f"[{place}](#{_anchor(place)})"
    if "enum" in value or "const" in value:
        return ", ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    of = value.get("type", "anything")
    if of == "array":
        return f"list of {_takes(value['items'], places) if 'items' in value else 'values'}"
    if of == "object":
        inner = value.get("additionalProperties")
        return f"by name: {_takes(inner, places)}" if isinstance(inner, dict) else "a mapping"
    if of == "string" and "examples" in value:
        shown = ", ".join(f"`{one}`" for one in value["examples"][:_MOST_EXAMPLES])
        return f"text such as {shown}"
    named = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    kinds: list[str] = of if isinstance(of, list) else [of]
    return " or ".join(named.get(one, one) for one in kinds) + _bounds(value)


def _bounds(value: dict[str, Any]) -> str:
    signs = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    said = [f"{sign} {value[key]:g}" for key, sign in signs.items() if key in value]
    return f", {', '.join(said)}" if said else ""


def _anchor(place: str) -> str:
    """As MkDocs makes them of headings."""
    kept = "".join(letter for letter in place.lower() if letter.isalnum() or letter in " -_")
    return kept.strip().replace(" ", "-")


def _about(part: dict[str, Any]) -> str:
    """The description as one cell of a table."""
    return " ".join(part.get("description", "").split()).replace("|", "\\|")
