"""Devices that warm up, from the ends of what is valid."""

from random import Random
from typing import Any

from ends import between


def heat(chance: Random) -> dict[str, Any]:
    """A chip, most often with a body around it, and a governor that may look all the time or hardly ever."""
    throttle_from_c = between(chance, 26.0, 199.0)
    found: dict[str, Any] = {
        **_node(chance),
        "throttle_from_c": f"{throttle_from_c!r} C",
        "throttle_to_c": f"{throttle_from_c + between(chance, 1e-3, 200.0 - throttle_from_c)!r} C",
        "least_clock": between(chance, 1e-6, 0.999),
    }
    if chance.random() < 0.7:
        found["body"] = _node(chance)
    if chance.random() < 0.3:
        found["look_s"] = f"{between(chance, 1e-6, 1e6)!r} s"
    if chance.random() < 0.3:
        found["start_c"] = f"{chance.choice([-40.0, 25.0, 150.0])!r} C"
    return found


def _node(chance: Random) -> dict[str, Any]:
    return {
        "capacity_j_per_k": f"{between(chance, 1e-3, 1e6)!r} J/K",
        "resistance_k_per_w": f"{between(chance, 1e-3, 1e3)!r} K/W",
    }
