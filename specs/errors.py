"""Every error that KVFerry raises on purpose: one hierarchy.

``InputError`` is the user's to mend (exit code 2, no stack trace); any other ``KvferryError`` is a run that
failed (exit code 1). An out-of-memory run is a result and not an error.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

Named = TypeVar("Named")


class KvferryError(Exception):
    """Root of the hierarchy; its text is written for the user."""


class InputError(KvferryError):
    """What the user gave cannot be used: names the place, what came, and what would do."""


class MissingExtra(KvferryError):
    """An optional part is asked for that is not installed; says how to get it."""


class LinkDown(KvferryError):
    """A transfer cannot finish: the link's trace ended, or is down for ever, or nobody answers."""

    # Of the transfer that failed with it: what had arrived by then, for nothing. The machine says so.
    bytes_done: float = 0.0


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An ``InputError`` that lists the known names of a kind and suggests the nearest."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {kind} {name!r}; known: {', '.join(names)}.{hint}")


def pick(kind: str, table: Mapping[str, Named], name: str) -> Named:
    """The entry of that name. Raises InputError with the nearest one."""
    if name not in table:
        raise unknown_name(kind, name, table)
    return table[name]
