"""Error messages for an input: one line per fault with its place, the value found and what would be valid."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from kvferry.scenarios.library import BUNDLED
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.base import BadKey
from kvferry.specs.errors import InputError
from kvferry.specs.findings import BOUNDS, WANTED, rule_of
from kvferry.specs.kinds import BY_KIND
from kvferry.specs.node import Node, brief

MOST_LINES = 30
_MAPPINGS, _NUMBERS = ("dict_type", "model_type", "model_attributes_type"), ("float_type", "float_parsing")
# What a text should look like, by the key that it belongs to; a name otherwise.
_NAME = "a name of at most 100 letters, digits, blanks and . _ + -, a letter or digit first"
_PATTERNS = {
    "cloud": "the address of a server, like http://127.0.0.1:8100",
    "processor": "a torch device, like cpu or cuda:0",
}


def complaints_of(error: ValidationError, model: type[BaseModel]) -> list[Complaint]:
    """pydantic's findings about a record of this model, each as a Complaint."""
    complaints: list[Complaint] = []
    for found in error.errors(include_url=False):
        detail: dict[str, Any] = {**found, "loc": _without_branch(found["loc"])}
        complaint = _complaint(detail, model)
        if complaint.key == (complaints[-1].key if complaints else None) and detail["type"] == "literal_error":
            # The other way to write it.
            words = ", ".join(re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
            what = complaints[-1].what.removesuffix(f", or {words}")
            complaints[-1] = replace(complaints[-1], what=f"{what}, or {words}")
        else:
            complaints.append(complaint)
    return complaints


def input_error(complaints: Iterable[Complaint], tree: Node) -> InputError:
    """One error with a line per complaint, in the order of their places: FILE:LINE: key.path: what is wrong."""
    placed = []
    for complaint in complaints:
        node, depth = tree, 0
        for key in complaint.key:
            below = node.child(key)
            if below is None:
                break
            node, depth = below, depth + 1
        at_key = complaint.at_key or depth < len(complaint.key)
        # What is missing in a user's file that another one names, is missing there.
        elsewhere = 0 < depth < len(complaint.key) and node.place.source != node.key_place.source
        elsewhere = elsewhere and not node.place.folder.is_relative_to(BUNDLED)
        place = node.key_place if at_key and not elsewhere else node.place
        key = ".".join(str(part) for part in complaint.key)
        line = f"{place}: {key}: {complaint.what}" if key else f"{place}: {complaint.what}"
        placed.append((place.source, place.line or 0, line))
    lines = [line for _, _, line in sorted(placed)]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... and {len(lines) - MOST_LINES} more"]
    return InputError("\n".join(lines))


def nearest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'link'?", or nothing."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _complaint(detail: dict[str, Any], model: type[BaseModel]) -> Complaint:
    loc, kind, context = tuple(detail["loc"]), detail["type"], detail.get("ctx", {})
    key = _without_tags(model, loc)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = context["discriminator"].strip("'")
        if kind == "union_tag_not_found":
            return Complaint((*key, tag), "is missing")
        known = re.findall(r"'([^']*)'", context["expected_tags"])
        what = f"{context['tag']!r:.60} is none of {', '.join(known)}{nearest(context['tag'], known)}"
        return Complaint((*key, tag), what)
    if kind == "extra_forbidden":
        # The kind need not be given there: it follows from the workload's.
        tagged = loc[:-1] and loc[0] in BY_KIND
        known = [name for name in _keys_at(model, loc[:-1]) if not (tagged and name == "kind")]
        before, colon, value = str(key[-1]).partition(":")
        if colon and before in known:
            return Complaint(key, f"lacks a blank behind its colon; write it like {before}: {value:.60}", at_key=True)
        known_here = f"known here: {', '.join(known)}{nearest(str(key[-1]), known)}" if known else "none is known here"
        return Complaint(key, f"unknown key; {known_here}", at_key=True)
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"])
        what = f"{brief(detail['input'])} is none of {', '.join(known)}{nearest(str(detail['input']), known)}"
        return _of_key(key, what)
    if kind == "missing":
        return Complaint(key, f"is missing{_example(model, loc)}")
    if kind == "value_error":
        fault = context["error"]
        more = tuple(fault.key.split(".")) if isinstance(fault, BadKey) else ()
        return _of_key(key + more, str(fault))
    if kind in BOUNDS:
        return Complaint(key, f"{brief(detail['input'])}: {rule_of(detail)}")
    came = brief(detail["input"])
    if key == ("system",) and kind == "string_type" and isinstance(detail["input"], list | tuple):
        several = ",".join(map(str, detail["input"]))[:100]
        return Complaint(key, f"a list is not one system; several: kvferry compare SCENARIO --systems {several}")
    if kind in _MAPPINGS:
        return Complaint(key, f"{came} is not {WANTED[kind]}{_example_below(model, loc)}")
    if kind in _NUMBERS and (share := re.fullmatch(r"\s*([0-9.]+)\s*%\s*", str(detail["input"]))):
        return Complaint(key, f"{came} is not {WANTED[kind]}; write it like {_share_of(share[1])}")
    if kind == "string_pattern_mismatch":
        return Complaint(key, f"{came} is not {_PATTERNS.get(str(key[-1]), _NAME)}")
    return Complaint(key, f"{came} is not {WANTED[kind]}" if kind in WANTED else f"{came}: {detail['msg']}")


def _share_of(percent: str) -> str:
    try:
        return f"{float(percent) / 100:.6g}"
    except ValueError:
        return "0.3"


def _without_branch(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """pydantic puts the branch of a plain union behind the key that takes either: ``literal['max']``."""
    branch = r"(literal|function-\w+)\[|(constrained-(int|float)|int)$"
    is_branch = bool(loc) and re.match(branch, str(loc[-1])) is not None
    return loc[:-1] if is_branch else loc


def _of_key(key: tuple[str | int, ...], what: str) -> Complaint:
    """pydantic puts "[key]" behind a key that is wrong itself."""
    of_key = bool(key) and key[-1] == "[key]"
    return Complaint(key[:-1] if of_key else key, what, at_key=of_key)


def _without_tags(model: type[BaseModel], loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Keys as the file has them: pydantic puts the tag of a discriminated union behind the key that it stands under."""
    found: Any = model
    kept: list[str | int] = []
    for key in loc:
        if _members(found) and key in _members(found):
            found = _members(found)[str(key)]
            continue
        kept.append(key)
        found = _below(found, key)
    return tuple(kept)


def _members(annotation: Any) -> dict[str, type[BaseModel]]:
    """The records of a discriminated union by their tags; empty for anything else."""
    if not isinstance(annotation, FieldInfo) or not isinstance(annotation.discriminator, str):
        return {}
    records: list[type[BaseModel]] = list(get_args(annotation.annotation))
    tags = {record: get_args(record.model_fields[annotation.discriminator].annotation) for record in records}
    return {tag: record for record, of in tags.items() for tag in of}


def _keys_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """The keys that YAML may have at a path of the model's tree."""
    found: Any = model
    for key in path:
        found = _members(found).get(str(key)) or _below(found, key)
    record = _record(found)
    return sorted(field.alias or name for name, field in record.model_fields.items()) if record else []


def _example(model: type[BaseModel], key: tuple[str | int, ...]) -> str:
    """How the missing key could be written, if it holds a count or a physical value, or says an example."""
    found: Any = model
    for part in key[:-1]:
        found = _members(found).get(str(part)) or _below(found, part)
    record = _record(found)
    for name, field in record.model_fields.items() if record else ():
        if key[-1] in (name, field.alias) and (examples := _examples(field)):
            return f"; write it like {key[-1]}: {examples[-1]}"
    return ""


def _examples(field: FieldInfo) -> Sequence[str]:
    """Returns how its value is written, also of one that may be null."""
    items = [
        *field.metadata,
        *(one for part in get_args(field.annotation) for one in getattr(part, "__metadata__", ())),
    ]
    found = (getattr(item, "json_schema", None) or {} for item in items)
    own = [_as_written(one) for one in field.examples or ()]
    return own or next((schema["examples"] for schema in found if schema.get("examples")), [])


def _as_written(example: Any) -> str:
    if isinstance(example, dict):
        return f"{{{', '.join(f'{key}: {_as_written(value)}' for key, value in example.items())}}}"
    return str(example).lower() if isinstance(example, bool) else str(example)


def _example_below(model: type[BaseModel], key: tuple[str | int, ...]) -> str:
    """Returns how a mapping could be written whose first key is a count or a physical value."""
    found: Any = model
    for part in key:
        found = _members(found).get(str(part)) or _below(found, part)
    record = _record(found)
    for name, field in list(record.model_fields.items())[:1] if record else ():
        if examples := _examples(field):
            return f"; write it like {{{field.alias or name}: {examples[-1]}}}"
    return ""


def _below(annotation: Any, key: str | int) -> Any:
    """The type of what stands under a key: a record's field, or the items of a dict or tuple."""
    annotation = annotation.annotation if isinstance(annotation, FieldInfo) else annotation
    record = _record(annotation)
    if record:
        fields = record.model_fields
        field = next((field for name, field in fields.items() if key in (name, field.alias)), None)
        return field if field is None or field.discriminator else field.annotation
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) in (dict, tuple, list):
            return get_args(part)[-1] if get_origin(part) is dict else get_args(part)[0]
    return None


def _record(annotation: Any) -> type[BaseModel] | None:
    """The record among an annotation's alternatives (``LoadSpec | None``), if there is one."""
    if get_origin(annotation) in (dict, tuple, list):
        return None
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None
