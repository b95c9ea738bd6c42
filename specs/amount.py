"""A value of any kind, as a file writes it, that can be compared and divided: a number, a count, or one with a unit."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvferry.specs.units import KINDS, count, quantity

_PARTS = re.compile(r"\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(\S.*?)\s*")
NUMBER, WHOLE = "number", "whole number"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number in SI units; `kind` is a key of ``KINDS``, ``NUMBER``, or ``WHOLE``, as counts are ("32Ki tokens").

    `written` and `unit` are the number and the unit as the file has them ("4" and "ms"); counts are written out.
    """

    number: float
    kind: str
    written: str
    unit: str = ""

    def is_like(self, other: "Amount") -> bool:
        """Whether the two can be compared."""
        return self.kind == other.kind or {self.kind, other.kind} == {NUMBER, WHOLE}


def amount_of(value: Any) -> Amount | None:
    """The amount that a value of a file is; None if it is none (a name, a truth value, a mapping, nothing)."""
    if isinstance(value, str):
        return _amount_of_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Amount(value, WHOLE if isinstance(value, int) else NUMBER, repr(value))


@lru_cache(maxsize=4096)
def _amount_of_text(text: str) -> Amount | None:
    match = _PARTS.fullmatch(text) if len(text) <= 40 else None
    for kind in KINDS if match else ():
        try:
            number = quantity(text, kind)
        except ValueError:
            continue
        assert match is not None
        return Amount(number, kind, match[1], match[2])
    try:
        whole = count(text)
    except ValueError:
        return None
    return Amount(whole, WHOLE, str(whole))
