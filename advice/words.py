"""Words of a shell."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from kvferry.specs.units import with_unit

# Arguments of advise that have a unit, and whose plain numbers are SI.
_KINDS = {"memory": "size", "ttft": "time", "energy": "energy"}
# Control characters as bash reads them back.
_ESCAPED = {n: f"\\x{n:02x}" for n in (*range(0x20), 0x7F)}


def word(text: str) -> str:
    """The text as one word of a shell, in one line and with nothing that a terminal obeys."""
    if text.isprintable():
        return quote(text)
    return "$'{}'".format(text.replace("\\", r"\\").replace("'", r"\'").translate(_ESCAPED))


def value_of(argument: str, value: Any) -> str:
    """An argument of ``advise`` as its option takes it."""
    if isinstance(value, str):
        return value
    return with_unit(value, _KINDS[argument]) if argument in _KINDS else f"{value:.12g}"


def command(asked: Mapping[str, Any], settings: Sequence[str], further: Sequence[str] = ()) -> str:
    """The command that asks with these arguments and settings, and with further words."""
    given = [part for key, value in asked.items() for part in (f"--{key.replace('_', '-')}", value_of(key, value))]
    own = [part for one in settings for part in ("--set", one)]
    return " ".join(word(part) for part in ("kvferry", "advise", *given, *own, *further))
