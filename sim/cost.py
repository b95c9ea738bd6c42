"""The answer of a cost model: what one op costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """`duration_s` on an idle device, without dispatch; `n_bytes` that the op moves to and from memory."""

    duration_s: float
    n_bytes: float = 0.0
