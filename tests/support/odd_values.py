"""Plain values with one of their parts become something else."""

import math
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    10**7,
    10**30,
    -0.5,
    1e308,
    math.nan,
    math.inf,
    "",
    "x" * 999,
    "\x1b[31m",
    "\u202e",
    "\ud800",
    b"",
    b"\x00\xff",
    [],
    {},
    (),
    [[[]]],
    (1, None),
    {"tuple": []},
    {"request": 0},
)


def odd(chance: Random, value: Any) -> Any:
    """The value with one of its parts odd, missing or there twice."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        how = chance.random()
        if how < 0.1:
            return {name: one for name, one in value.items() if name != key}
        if how < 0.2:
            return {**value, chance.choice(("", "x" * 300, "request")): chance.choice(ODD)}
        return {**value, key: odd(chance, value[key])}
    if isinstance(value, list | tuple) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        return type(value)([*value[:at], odd(chance, value[at]), *value[at + chance.choice((0, 1, 1, 1)) :]])
    if type(value) is int and chance.random() < 0.3:
        return value + chance.choice((-1, 1, 100, 10**6))
    return chance.choice(ODD)
