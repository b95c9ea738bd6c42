"""The tuner's lookup table of reuse rates (KVSwap A.1): by context and group size besides the buffer's capacity."""

from collections.abc import Sequence

import numpy as np


class ReuseTable:
    """Mean reuse rates ``rates`` [contexts, group sizes, capacities]; all three ascending, capacities in tokens per
    layer and sequence.

    The rate is linear in the capacity, and in the logarithms of context and group size; beyond the table it stays.
    A.1 has capacities alone. The same capacity, though, holds more of what is wanted again in a short context, and
    in groups more of what is wanted by chance.
    """

    def __init__(
        self,
        *,
        contexts: Sequence[int],
        group_tokens: Sequence[int],
        capacity_tokens: Sequence[float],
        rates: np.ndarray,
    ) -> None:
        """ValueError when rates do not fit the rest."""
        if rates.shape != (len(contexts), len(group_tokens), len(capacity_tokens)):
            raise ValueError(f"{rates.shape} rates for {len(contexts)} x {len(group_tokens)} x {len(capacity_tokens)}")
        self.contexts, self.group_tokens = tuple(contexts), tuple(group_tokens)
        self.capacity_tokens, self.rates = tuple(capacity_tokens), rates
        self._capacities = np.array([0.0, *capacity_tokens])
        self._curves: dict[tuple[int, int], np.ndarray] = {}

    @property
    def most_tokens(self) -> float:
        """Returns the capacity beyond which nothing is known to come."""
        return self.capacity_tokens[-1]

    def __call__(self, context: int, group_tokens: int, capacity_tokens: float) -> float:
        """0 for no buffer."""
        if not capacity_tokens:
            return 0.0
        key = context, group_tokens
        if key not in self._curves:
            self._curves[key] = np.array([0.0, *_between(self.group_tokens, group_tokens, self._in_context(context))])
        return float(np.interp(capacity_tokens, self._capacities, self._curves[key]))

    def _in_context(self, context: int) -> np.ndarray:
        """Returns [group sizes, capacities]"""
        return _between(self.contexts, context, self.rates)


def _between(known: Sequence[int], wanted: int, rates: np.ndarray) -> np.ndarray:
    """Along the first axis."""
    at = float(np.interp(np.log(wanted), np.log(known), np.arange(len(known))))
    low = min(int(at), len(known) - 2) if len(known) > 1 else 0
    high = min(low + 1, len(known) - 1)
    between: np.ndarray = rates[low] + (at - low) * (rates[high] - rates[low])
    return between
