"""Physical values: text with a unit at the edge, SI numbers inside.

``Seconds``, ``Bytes`` ... are field types for a ``Spec``. Validated with the context ``{"from_file": True}``
they insist on a unit; built from Python they take the SI number as it is.
"""

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

# What each kind of quantity is measured in inside, and an example that an error can show.
KINDS: dict[str, tuple[str, str]] = {
    "time": ("second", "4 ms"),
    "size": ("byte", "24 KiB"),
    "rate": ("byte / second", "850 Mbit/s"),
    "compute": ("flop / second", "33 Tflop/s"),
    "power": ("watt", "25 W"),
    "energy": ("joule", "3 J"),
    "frequency": ("hertz", "0.2 Hz"),
    "values": ("value / second", "50 Mvalue/s"),
}
_COUNT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|k|K|M|G)?\s*(tokens?|requests?)?\s*$")
_COUNT_FACTOR = {
    None: 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
}


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint  # a third of a second: only when a file is read

    registry = pint.UnitRegistry(cache_folder=None)
    registry.define("flop = [operations]")
    registry.define("value = [values]")
    return registry


def quantity(text: str, kind: str) -> float:
    """The SI value of a text such as "850 Mbit/s".

    Raises ValueError when the text has no number, no unit, or one of another kind.
    """
    import pint

    unit, example = KINDS[kind]
    # A size or count of hostile length, or an exponent tower, must not reach the expression parser.
    if len(text) > 40 or "**" in text or "^" in text or "(" in text:
        raise ValueError(f"{text[:40]!r} is not a {kind}; write it like {example!r}")
    try:
        parsed = _registry().Quantity(text)
        if parsed.unitless:
            raise ValueError(f"{text!r} has no unit; write it like {example!r}")
        return float(parsed.to(unit).magnitude)
    except (pint.errors.PintError, TypeError, SyntaxError, AttributeError, ArithmeticError, AssertionError):
        raise ValueError(f"{text!r} is not a {kind}; write it like {example!r}") from None


def _reader(kind: str) -> Callable[[Any, ValidationInfo], Any]:
    def read(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return quantity(value, kind)
        from_file = bool(info.context and info.context.get("from_file"))
        if from_file and isinstance(value, int | float):
            raise ValueError(f"{value!r} has no unit; write it like {KINDS[kind][1]!r}")
        return value

    return read


def count(value: Any) -> Any:
    """A whole number from 32768, "32Ki" or "32Ki tokens"; anything else is left for pydantic to refuse."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a count; write it like 32768 or '32Ki tokens'")
    if isinstance(value, str):
        match = _COUNT.match(value)
        if not match:
            raise ValueError(f"{value!r} is not a count; write it like 32768 or '32Ki tokens'")
        number = float(match[1]) * _COUNT_FACTOR[match[2]]
        if number != math.floor(number):
            raise ValueError(f"{value!r} is not a whole number")
        return int(number)
    return value


def _schema(kind: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": f"a {kind} with its unit", "examples": [KINDS[kind][1]]})


# The upper bounds catch slips of the unit ("4 s" for "4 ms" passes, "4e9 s" does not).
Seconds = Annotated[float, BeforeValidator(_reader("time")), Field(ge=0, le=1e7), _schema("time")]
Bytes = Annotated[float, BeforeValidator(_reader("size")), Field(ge=0, le=1e16), _schema("size")]
BytesPerS = Annotated[float, BeforeValidator(_reader("rate")), Field(gt=0, le=1e14), _schema("rate")]
FlopPerS = Annotated[float, BeforeValidator(_reader("compute")), Field(gt=0, le=1e18), _schema("compute")]
Watts = Annotated[float, BeforeValidator(_reader("power")), Field(ge=0, le=1e5), _schema("power")]
Joules = Annotated[float, BeforeValidator(_reader("energy")), Field(ge=0, le=1e9), _schema("energy")]
Hertz = Annotated[float, BeforeValidator(_reader("frequency")), Field(gt=0, le=1e9), _schema("frequency")]
ValuesPerS = Annotated[float, BeforeValidator(_reader("values")), Field(gt=0, le=1e13), _schema("values")]
Count = Annotated[
    int,
    BeforeValidator(count),
    Field(ge=0, le=10**9),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "examples": ["32Ki tokens"]}),
]
