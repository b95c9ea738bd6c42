"""Whether a machine keeps its speed while something is measured, by processor time."""

from time import thread_time

import torch

# How much longer the slowest probe of a measurement may take than the fastest.
MOST_CHANGE = 1.15
_UNTIMED, _PRODUCTS = 1000, 3000
_WEIGHTS = torch.randn(512, 512, dtype=torch.bfloat16)


class Speed:
    """Probes of one measurement: before, between and behind its parts."""

    def __init__(self) -> None:
        self._probes_s: list[float] = []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def probe(self) -> None:
        """Times products that have nothing to do with any model, each too small to take more than a launch. The first
        are not timed: what came before has left its own in caches, and a clock that it lowered."""
        row = torch.ones(1, 512, dtype=torch.bfloat16)
        for n in range(_PRODUCTS + _UNTIMED):
            if n == _UNTIMED:
                began_s = thread_time()
            row = torch.tanh(row @ _WEIGHTS)
        self._probes_s.append(thread_time() - began_s)

    @property
    def change(self) -> float:
        """The slowest probe over the fastest."""
        return max(self._probes_s) / min(self._probes_s)

    @property
    def kept(self) -> bool:
        """Whether the machine kept its speed."""
        return self.change <= MOST_CHANGE
