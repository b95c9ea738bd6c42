"""What an op costs: the answer of a cost model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """`duration_s` alone on an idle device, dispatch apart; `n_bytes` moved to and from memory meanwhile."""

    duration_s: float
    n_bytes: float = 0.0
