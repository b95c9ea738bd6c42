"""Whether a machine keeps its speed while something is measured, by processor time."""

from time import thread_time

import torch

# How much longer the slowest probe of a measurement may take than the fastest.
MOST_CHANGE = 1.15
_WEIGHTS = torch.randn(512, 512, dtype=torch.bfloat16)


class Speed:
    """Probes of one measurement: before, between and behind its parts."""

    def __init__(self) -> None:
        self._probes_s: list[float] = []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def probe(self) -> None:
        """Times products that have nothing to do with any model, each too small to take more than a launch."""
        began_s, row = thread_time(), torch.ones(1, 512, dtype=torch.bfloat16)
        for _ in range(3000):
            row = torch.tanh(row @ _WEIGHTS)
        self._probes_s.append(thread_time() - began_s)

    @property
    def change(self) -> float:
        """The slowest probe over the fastest."""
        return max(self._probes_s) / min(self._probes_s)
