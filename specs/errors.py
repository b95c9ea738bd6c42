"""The hierarchy of all errors that KVFerry raises on purpose.

An ``InputError`` can be mended by the user (exit code 2, no stack trace); any other ``KvferryError`` means that a run
failed (exit code 1). Running out of memory is an outcome of a run, not an error.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

Named = TypeVar("Named")

# What a terminal obeys instead of showing it, or hides: control characters but for line ends and tabs, marks that turn
# the direction of writing, further line ends, and halves of characters.
UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def quoted(text: str) -> str:
    r"""The text with every character that a terminal would obey written as its escape, such as \x1b."""
    return UNSHOWN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def quoted_name(text: str) -> str:
    r"""The same for a name, in which line ends and tabs are as odd: they would pass for a line of ours."""
    return quoted(text).translate({ord("\n"): r"\n", ord("\t"): r"\t"})


class KvferryError(Exception):
    """Root of the hierarchy. Its text is written for the user; what it repeats of an input is ``quoted``."""

    def __str__(self) -> str:
        return quoted(super().__str__())


class InputError(KvferryError):
    """The user's input cannot be used. The text names the place, the value, and what would be valid."""


class MissingExtra(KvferryError):
    """An optional part is needed that is not installed. The text says how to install it."""


class LinkDown(KvferryError):
    """A transfer cannot finish: the link's trace ended or stays at rate 0, or the cloud does not answer."""

    # How many bytes of the failed transfer had arrived, and are of no use. The machine sets it.
    bytes_done: float = 0.0


class OutOfMemory(KvferryError):
    """Something needs more memory than is left when nothing else holds any."""


class Terminated(SystemExit):
    """The process was asked to end, by a signal, with this exit code. It is no fault of a policy that runs then."""


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
