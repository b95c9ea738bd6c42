"""Slips in how a quantity is written, and what was meant: "50 mbps", "50 MBit/s", "4 Ms"."""

import re

_WORDS = "milli|micro|nano", "kilo|mega|giga|tera|peta|kibi|mebi|gibi|tebi"
# Thousandths, millionths and milliardths, of what comes in whole pieces: "mbps", "ub", "nflop".
_SMALL = re.compile(
    rf"(?P<prefix>{_WORDS[0]}|[mun\u00b5\u03bc])"
    r"(?P<piece>b|B|bits?|bytes?|bps|Bps|flops?|values?|instructions?)(?P<per>[ /].*)?"
)
# Millions of seconds, thousandths of hours: a time, or what a rate is over.
_TIME = re.compile(
    rf"(?:.*(?:/|\bper\b)\s*)?(?:(?P<large>{_WORDS[1]}|[kMGTP]|[KMGT]i)(?:(?P<s>s|seconds?)|min|minutes?|h|hours?)"
    rf"|(?:{_WORDS[0]}|[mun\u00b5\u03bc])(?:min|minutes?|h|hours?))"
)
_LARGE = {"k": "kilo", "M": "mega", "G": "giga", "T": "tera", "P": "peta"} | {
    "Ki": "kibi", "Mi": "mebi", "Gi": "gibi", "Ti": "tebi"
}  # fmt: skip
# A size whose unit is a short b.
_SIZE_IN_B = re.compile(rf"(?P<prefix>{_WORDS[1]}|[kMGTP]|[KMGT]i)?b")
# Units that people write, in any case.
_PREFIX, _PER = "(?P<prefix>[kmgtp]i?)?", r"(?P<per>ps|(?:/|per)(?:s|secs?|seconds?))"
_LOOSE = {
    "size": re.compile(rf"{_PREFIX}(?P<piece>b|bits?|bytes?)", re.IGNORECASE),
    "rate": re.compile(rf"{_PREFIX}(?P<piece>b|bits?|bytes?){_PER}", re.IGNORECASE),
    "compute rate": re.compile(rf"{_PREFIX}(?P<piece>flops?){_PER}?", re.IGNORECASE),
    "clock": re.compile(rf"{_PREFIX}(?P<piece>hz|hertz)", re.IGNORECASE),
    "time": re.compile(r"(?P<prefix>[mun\u00b5\u03bc])?(?P<piece>s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)", re.I),
}


def part_of_a_piece(number: str, unit: str, kind: str) -> str | None:
    """Returns what is wrong with a prefix such as the m of "mbps", and what was meant; None where nothing is. A size
    "200 mb" means megabytes: who means bits spells them out, or has a rate."""
    small = _SMALL.fullmatch(unit)
    if small is None:
        return None
    prefix, rest = small["prefix"], unit[small.end("prefix") :].replace("Bps", "B/s")
    word = {"m": "milli", "n": "nano"}.get(prefix, "micro" if len(prefix) == 1 else prefix)
    piece = {"b": "bit", "bps": "bit", "B": "byte", "Bps": "byte"}.get(small["piece"], small["piece"].rstrip("s"))
    if kind == "size" and rest == "b":
        rest = "B"
    meant = f"; m is a thousandth, M a million: '{number} M{rest}'" if prefix == "m" else ""
    return f"is in {word}{piece}s, and there is no part of one{meant}"


def size_in_bits(number: str, unit: str) -> str | None:
    """Returns what is wrong with a size such as "300 Mib", and what was meant; None where nothing is: who means bits of
    a size spells them out."""
    small_b = _SIZE_IN_B.fullmatch(unit)
    if small_b is None:
        return None
    prefix = small_b["prefix"] or ""
    word = _LARGE.get(prefix, prefix)
    of_bytes, of_bits = ("bytes", "bits") if prefix in _WORDS[1].split("|") else ("B", "bit")
    said = f"{unit} is {word}bits; '{number} {prefix}{of_bytes}' is {number} {word}bytes"
    return f"is in bits: {said}, and '{number} {prefix}{of_bits}' says bits"


def odd_time(number: str, unit: str) -> str | None:
    """Returns what is wrong with a time of "4 Ms", or the one that a rate such as "50 Mbit/Ms" is over, and what was
    meant; None where nothing is."""
    odd = _TIME.fullmatch(unit)
    if odd is None:
        return None
    if odd["s"] is None:
        return "has a minute or an hour with a prefix, which nobody means; write it in s"
    word = _LARGE.get(odd["large"], odd["large"])
    meant = f"; M is a million, m a thousandth: '{number} {unit[: odd.start('large')]}m{odd['s']}'"
    return f"is in {word}seconds{meant if word == 'mega' else ', which nobody means; write it in s'}"


def meant(number: str, unit: str, kind: str) -> str | None:
    """Returns how to write what was meant by a unit that is none: '50 Mbit/s' for "50 MBit/s"; None: who knows."""
    loose = _LOOSE.get(kind)
    found = None if loose is None else loose.fullmatch(re.sub(r"\s", "", unit))
    if found is None:
        return None
    prefix, piece = (found["prefix"] or "").lower(), found["piece"]
    if kind == "time":
        short = {"s": "s", "m": "min", "h": "h"}[piece[0].lower()]
        return f"'{number} {prefix}{short}'" if short == "s" or not prefix else None
    if kind in ("size", "rate"):
        in_bytes = piece == "B" or piece.lower().startswith("byte") or (kind == "size" and piece == "b")
        short = "B" if in_bytes else "bit"
    else:
        short = "flop" if kind == "compute rate" else "Hz"
    per = "/s" if kind in ("rate", "compute rate") else ""
    prefixes = (
        ["k", "Ki"] if (found["prefix"], short) == ("K", "B") else ["k" if prefix == "k" else prefix.capitalize()]
    )
    return " or ".join(f"'{number} {one}{short}{per}'" for one in prefixes)
