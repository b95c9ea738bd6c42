"""pydantic's findings about a value, in the project's words."""

from collections.abc import Mapping
from typing import Any

# pydantic's error types, by what would have done instead.
WANTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "tuple_type": "a list",
    "list_type": "a list",
}
# By pydantic's type of error: where the bound stands, and what must be.
BOUNDS = {
    "greater_than": ("gt", "must be above"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be below"),
    "less_than_equal": ("le", "must be at most"),
    "too_short": ("min_length", "entries needed: at least"),
    "too_long": ("max_length", "entries needed: at most"),
    "string_too_short": ("min_length", "characters needed: at least"),
    "string_too_long": ("max_length", "characters needed: at most"),
}


def rule_of(detail: Mapping[str, Any]) -> str:
    """Returns what the value must be: "must be at least 1"; pydantic's own message of a rule that is not known here."""
    kind = detail["type"]
    if kind in WANTED:
        return f"must be {WANTED[kind]}"
    if kind not in BOUNDS:
        return str(detail["msg"]).removeprefix("Value error, ")
    name, words = BOUNDS[kind]
    return f"{words} {detail['ctx'][name]:,.12g}"
