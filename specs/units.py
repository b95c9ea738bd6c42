"""Physical values: text with a unit at the edge, SI numbers inside.

``Seconds``, ``Bytes`` ... are field types for a ``Spec``. Validated with the context ``{"from_file": True}``
they insist on a unit; built from Python they take the SI number as it is. Dumped to JSON they are text again,
which reads back as the same number to the last bit.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema

from kvferry.specs.unit_slips import meant, odd_time, part_of_a_piece, size_in_bits


@dataclass(frozen=True)
class Kind:
    """A kind of quantity: its SI unit, how people write it, and the bounds that catch a slip of the unit."""

    unit: str
    example: str
    high: float
    zero: bool = True

    @property
    def bounds(self) -> str:
        return f"{'between 0 and' if self.zero else 'above 0 and up to'} {self.high:g} {self.unit}"

    def holds(self, number: float) -> bool:
        return 0 <= number <= self.high and (self.zero or number > 0)


KINDS: dict[str, Kind] = {
    "time": Kind("s", "4 ms", 1e7),
    "size": Kind("B", "24 KiB", 1e16),
    "rate": Kind("B/s", "850 Mbit/s", 1e14, zero=False),
    "compute rate": Kind("flop/s", "33 Tflop/s", 1e18, zero=False),
    "power": Kind("W", "25 W", 1e5),
    "energy": Kind("J", "3 J", 1e9),
    "frequency": Kind("Hz", "0.2 requests/s", 1e9, zero=False),
    "clock": Kind("Hz", "2.2 GHz", 1e11, zero=False),
    "value rate": Kind("value/s", "50 Mvalue/s", 1e13, zero=False),
    "instruction rate": Kind("instruction/s", "4 Tinstruction/s", 1e16, zero=False),
    "temperature": Kind("C", "25 C", 200),
    "heat capacity": Kind("J/K", "150 J/K", 1e7, zero=False),
    "thermal resistance": Kind("K/W", "4 K/W", 1e9, zero=False),
}

# Only units that a scenario needs. Bits and operations are dimensions of their own here: in pint's default registry
# a bit is a plain number, and "850 MHz" would pass as a rate.
_DEFINITIONS = """
nano- = 1e-9 = n-
micro- = 1e-6 = u- = µ- = μ-
milli- = 1e-3 = m-
kilo- = 1e3 = k-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
tebi- = 1099511627776 = Ti-
second = [time] = s
minute = 60 * second = min
hour = 3600 * second = h
bit = [information] = b
byte = 8 * bit = B
bps = bit / second
flop = [operations]
value = [values]
instruction = [instructions]
joule = [energy] = J
watt = joule / second = W
watthour = watt * hour = Wh
hertz = 1 / second = Hz
kelvin = [temperature] = K
celsius = [celsius] = C
request = []
"""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ/ ]*?)\s*", re.ASCII)
# Kinds of what comes in whole bits, bytes, operations, values or instructions.
_OF_PIECES = ("size", "rate", "compute rate", "value rate", "instruction rate")
_COUNT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*(Ki|Mi|Gi|k|K|M|G)?\s*(?:([a-z]+?)s?)?\s*", re.ASCII)
_COUNT_FACTOR = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}

# What most files say, read without pint, whose import takes longer than a small run: a prefix and one of these.
_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PLAIN: dict[str, dict[str, float]] = {
    "time": {"s": 1.0},
    "size": {"B": 1.0, "bit": 0.125},
    "rate": {"B/s": 1.0, "bit/s": 0.125, "bps": 0.125},
    "compute rate": {"flop/s": 1.0},
    "power": {"W": 1.0},
    "energy": {"J": 1.0, "Wh": 3600.0},
    "frequency": {"Hz": 1.0, "requests/s": 1.0},
    "clock": {"Hz": 1.0},
    "value rate": {"value/s": 1.0, "values/s": 1.0},
    "instruction rate": {"instruction/s": 1.0, "instructions/s": 1.0},
    "temperature": {"C": 1.0},
    "heat capacity": {"J/K": 1.0},
    "thermal resistance": {"K/W": 1.0},
}


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    registry = pint.UnitRegistry(None, cache_folder=None)
    for line in _DEFINITIONS.split("\n"):
        if line:
            registry.define(line)
    return registry


@lru_cache(maxsize=256)
def _factor(unit: str, kind: str) -> float | str:
    """How many SI units one `unit` is, or the kind that it measures instead ("" when it measures none)."""
    plain = _plain_factor(unit, kind)
    return _parsed_factor(unit, kind) if plain is None else plain


def _plain_factor(unit: str, kind: str) -> float | None:
    """Returns how many SI units one `unit` is, None where it is no prefix and plain unit of this kind."""
    for plain, factor in _PLAIN[kind].items():
        prefix = unit.removesuffix(plain)
        if unit.endswith(plain) and prefix in _PREFIXES:
            return _PREFIXES[prefix] * factor
    return None


def _parsed_factor(unit: str, kind: str) -> float | str:
    """Returns what ``_factor`` does, of any unit that pint understands: "kB per minute"."""
    one = _parsed(unit)
    if one is None:
        return ""
    for other in (kind, *KINDS):
        si = _parsed(KINDS[other].unit)
        if one.dimensionality == si.dimensionality:
            return float(one.to(si.units).magnitude) if other == kind else other
    return ""


@lru_cache(maxsize=256)
def _parsed(unit: str) -> Any:
    """Returns one of this unit as pint has it; None where it is no unit."""
    import pint

    one_over = re.sub(r"^(/|per\b)", "1 /", unit)
    try:
        return _registry().Quantity(1.0, one_over)
    except (pint.errors.PintError, TypeError, ValueError, AttributeError, SyntaxError, AssertionError):
        return None


def quantity(text: str, kind: str) -> float:
    """The SI value of a text such as "850 Mbit/s", without regard to the bounds of its kind.

    Raises ValueError when the text has no number, no unit, one of another kind, or is not finite.
    """
    shown, hint = repr(text if len(text) <= 40 else text[:37] + "..."), f"write it like {KINDS[kind].example!r}"
    match = _QUANTITY.fullmatch(text) if len(text) <= 40 else None
    if not match:
        raise ValueError(f"{shown} is not a {kind}; {hint}")
    if not match[2]:
        raise ValueError(f"{shown} has no unit; {hint}")
    if kind in _OF_PIECES and (slip := part_of_a_piece(match[1], match[2], kind)):
        raise ValueError(f"{shown} {slip}")
    if kind == "size" and (slip := size_in_bits(match[1], match[2])):
        raise ValueError(f"{shown} {slip}")
    factor = _factor(match[2], kind)
    if isinstance(factor, str):
        if not factor and (better := meant(match[1], match[2], kind)):
            raise ValueError(f"{shown} has no unit of a {kind}; did you mean {better}?")
        what = f"is a {factor}, not a {kind}" if factor else f"has no unit of a {kind}"
        raise ValueError(f"{shown} {what}; {hint}")
    if slip := odd_time(match[1], match[2]):
        raise ValueError(f"{shown} {slip}")
    number = float(match[1]) * factor
    if not math.isfinite(number):
        raise ValueError(f"{shown} is not finite; {hint}")
    return number


def with_unit(number: float, kind: str) -> str:
    """The shortest text that ``quantity`` reads back as exactly this number."""
    short = f"{number:.15g}"
    return f"{short if float(short) == number else repr(number)} {KINDS[kind].unit}"


def shown_size(n_bytes: float, up: bool = False) -> str:
    """For messages: in GB, MB, kB or B, the largest unit that fits once; to a tenth, GB to a hundredth, or up to the
    next one."""
    units = (("GB", 10**9, 2), ("MB", 10**6, 1), ("kB", 10**3, 1))
    unit, of, digits = next((one for one in units if n_bytes >= one[1]), ("B", 1, 0))
    parts = n_bytes / of * 10**digits
    return f"{(math.ceil(parts) if up else round(parts)) / 10**digits:,.{digits}f} {unit}"


def _null(what: str) -> str:
    return f"null {what}, or leave the key out"


def _reader(kind: str) -> Callable[[Any, ValidationInfo], Any]:
    def read(value: Any, info: ValidationInfo) -> Any:
        from_file = bool(info.context and info.context.get("from_file"))
        number = value
        if isinstance(value, str):
            number = quantity(value, kind)
        elif not isinstance(value, int | float):
            hint = f"; write it like {KINDS[kind].example!r}" if from_file else ""
            raise ValueError(
                _null(f"is not a {kind}{hint}") if value is None else f"{value!r:.60} is not a {kind}{hint}"
            )
        elif from_file:
            raise ValueError(f"{str(value).lower()} has no unit; write it like {KINDS[kind].example!r}")
        if not KINDS[kind].holds(number):
            raise ValueError(f"{value!r} is out of range: a {kind} lies {KINDS[kind].bounds}")
        return float(number)

    return read


def _count_of(noun: str | None) -> Callable[[Any], Any]:
    """A reader of whole numbers; with a noun, "32Ki tokens" is refused where requests are counted."""
    example = f"'32Ki {noun}s'" if noun else "'32Ki'"

    def read(value: Any) -> Any:
        hint = f"is not a count; write it like 32768 or {example}"
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(_null(hint) if value is None else f"{value!r:.60} {hint}")
        if not isinstance(value, str):
            if not math.isfinite(value) or value != int(value):
                raise ValueError(f"{value!r} is not a whole number")
            return int(value)
        match = _COUNT.fullmatch(value)
        if not match or match[3] not in ({None, noun} if noun else {None, "token", "request"}):
            raise ValueError(f"{value[:40]!r} {hint}")
        number = float(match[1]) * _COUNT_FACTOR.get(match[2], 1)
        if number != int(number):
            raise ValueError(f"{value!r} is not a whole number")
        return int(number)

    return read


count = _count_of(None)


def _pattern(kind: str) -> str:
    """What texts of a kind look like, as a regular expression for JSON schemas: the ones that ``quantity`` reads, but
    for units that no one writes, such as W h."""
    large = "(?:k|M|G|T|P|Ki|Mi|Gi|Ti|kilo|mega|giga|tera|peta|kibi|mebi|gibi|tebi)?"
    small = "(?:n|u|\u00b5|\u03bc|m|nano|micro|milli)?"
    either = f"(?:{small}|{large})"
    time = f"(?:{small}(?:seconds?|s)|min|minutes?|h|hours?)"
    per = rf"\s*(?:/|per\b)\s*{time}"
    power = f"{either}(?:W|watts?)"
    energy = f"{either}(?:J|joules?|Wh)"
    bits = f"{large}(?:b|bits?|B|bytes?)"
    units = {
        "time": time,
        "size": f"{large}(?:bits?|B|bytes?)",
        "rate": f"(?:{bits}{per}|{large}bps)",
        "compute rate": f"{large}flops?{per}",
        "power": f"(?:{power}|{energy}{per})",
        "energy": energy,
        "frequency": f"(?:{either}(?:Hz|hertz)|(?:{either}requests?)?{per})",
        "value rate": f"{large}values?{per}",
        "instruction rate": f"{large}instructions?{per}",
        "temperature": "C",
        "heat capacity": f"{either}(?:J|joules?)\\s*/\\s*K",
        "thermal resistance": f"{either}K\\s*/\\s*(?:W|watts?)",
    }
    units["clock"] = units["frequency"]
    above_zero = "" if KINDS[kind].zero else r"(?!\s*\+?[0.]+(?:[eE][+-]?[0-9]+)?\s*[^0-9.eE])"
    return rf"^{above_zero}\s*\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*{units[kind]}\s*$"


def _physical(kind: str, example: str | None = None) -> Any:
    """The validator and serialiser of the types below, as one piece of ``Annotated`` metadata each. `example`: how a
    missing one could be written, where the kind's own is no size that it has."""
    schema = {
        "type": "string",
        "description": f"a {kind} with its unit",
        "examples": [example or KINDS[kind].example],
        "pattern": _pattern(kind),
    }
    return (
        BeforeValidator(_reader(kind)),
        PlainSerializer(lambda number: with_unit(number, kind), return_type=str, when_used="json"),
        WithJsonSchema(schema),
    )


def _counted(noun: str | None) -> Any:
    example = f"32Ki {noun}s" if noun else "32Ki"
    nouns = f"{noun}s?" if noun else "tokens?|requests?"
    pattern = rf"^\s*[0-9]{{1,15}}(?:\.[0-9]{{1,15}})?\s*(?:Ki|Mi|Gi|k|K|M|G)?\s*(?:{nouns})?\s*$"
    written = {"type": "string", "pattern": pattern}
    schema = {"anyOf": [{"type": "integer", "minimum": 0}, written], "examples": [32768, example]}
    return BeforeValidator(_count_of(noun)), Field(ge=0, le=10**9), WithJsonSchema(schema)


Seconds = Annotated[float, *_physical("time")]
Bytes = Annotated[float, *_physical("size")]
BytesPerS = Annotated[float, *_physical("rate")]
# Of memory, a hundred times a network's.
Bandwidth = Annotated[float, *_physical("rate", "100 GB/s")]
FlopPerS = Annotated[float, *_physical("compute rate")]
Watts = Annotated[float, *_physical("power")]
Joules = Annotated[float, *_physical("energy")]
Hertz = Annotated[float, *_physical("frequency")]
Clock = Annotated[float, *_physical("clock")]
ValuesPerS = Annotated[float, *_physical("value rate")]
InstructionsPerS = Annotated[float, *_physical("instruction rate")]
# On Celsius' scale, which has no prefixes.
Celsius = Annotated[float, *_physical("temperature")]
JoulesPerKelvin = Annotated[float, *_physical("heat capacity")]
KelvinPerWatt = Annotated[float, *_physical("thermal resistance")]
# Whole numbers: 32768, "32Ki"; Tokens also "32Ki tokens", Requests also "20 requests", Count either.
Count = Annotated[int, *_counted(None)]
Tokens = Annotated[int, *_counted("token")]
Requests = Annotated[int, *_counted("request")]
