"""What the comments above a record's fields say, as descriptions in the JSON schema of a scenario file."""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from kvferry.specs.base import Part, Spec

_FIELD = re.compile(r"    (?P<field>[a-z]\w*)\s*:")
_COMMENT = re.compile(r"    # ?(?P<text>.*)")


def add_notes(schema: dict[str, Any]) -> None:
    """Describes each property of the schema by the comment that stands above its field, if there is one.

    The comments are read from the source of the records; where there is none (a package without its sources), the
    schema stays as it is.
    """
    for record in _records(Spec):
        part = schema if record.__name__ == schema.get("title") else schema.get("$defs", {}).get(record.__name__)
        if part is None or "properties" not in part:
            continue
        for field, note in _notes(record).items():
            alias = record.model_fields[field].alias or field
            if alias in part["properties"]:
                part["properties"][alias]["description"] = _for_a_file(note)


def _for_a_file(note: str) -> str:
    """Returns the comment as a reader of files knows things: what is None in Python is absent there."""
    return re.sub(r"\bNone(?=[:,])", lambda found: "Absent" if _begins(note, found.start()) else "absent", note)


def _begins(note: str, at: int) -> bool:
    return at == 0 or note[:at].endswith(". ")


def add_bounds(schema: dict[str, Any]) -> None:
    """Gives each count of the schema the bounds of its field, which a type that is also read from text hides."""
    for record in _records(Spec):
        part = schema if record.__name__ == schema.get("title") else schema.get("$defs", {}).get(record.__name__)
        for name, field in record.model_fields.items():
            value = ((part or {}).get("properties") or {}).get(field.alias or name, {})
            for whole in (one for one in value.get("anyOf", ()) if one.get("type") == "integer"):
                least = [bound.ge for bound in field.metadata if getattr(bound, "ge", None) is not None]
                most = [bound.le for bound in field.metadata if getattr(bound, "le", None) is not None]
                whole |= ({"minimum": max(least)} if least else {}) | ({"maximum": min(most)} if most else {})


def _records(base: type[Spec]) -> Iterator[type[Spec]]:
    for record in base.__subclasses__():
        if record is not Part:
            yield record
        yield from _records(record)


@cache  # sources do not change, and each is read whole
def _notes(record: type[Spec]) -> dict[str, str]:
    """By field, also those of the records that it extends."""
    found: dict[str, str] = {}
    for each in reversed(record.__mro__):
        if not issubclass(each, Spec):
            continue
        try:
            lines = inspect.getsource(each).splitlines()
        except OSError:
            continue
        found |= {field: note for field, note in _with_comments(lines) if field in record.model_fields}
    return found


def _with_comments(lines: list[str]) -> Iterator[tuple[str, str]]:
    above: list[str] = []
    for line in lines:
        if comment := _COMMENT.fullmatch(line):
            above.append(comment["text"])
            continue
        if above and (field := _FIELD.match(line)):
            yield field["field"], " ".join(above)
        above = []
