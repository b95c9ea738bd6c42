"""Numbers from the ends of what is valid, and between."""

import math
from random import Random


def between(chance: Random, low: float, high: float) -> float:
    """One of the two ends, or a number between them by its logarithm."""
    if chance.random() < 0.3:
        return chance.choice([low, high])
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def count(chance: Random, low: int, high: int) -> int:
    return min(high, max(low, round(between(chance, low, high))))


def seconds(chance: Random, most: float) -> str:
    return f"{chance.choice([0.0, between(chance, 1e-9, most)])!r} s"
