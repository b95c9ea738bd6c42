"""A trace of a rate: what links and loaded processors replay."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from kvferry.traces.replay import Replay

OnEnd = Literal["loop", "hold", "end"]
# The end of a trace that never ends: finite, as 0 * inf would be NaN, and longer than any replay.
_FOREVER_S = 1e18


@dataclass(frozen=True, eq=False)
class RateTrace(Replay):
    """A piecewise-constant rate: `rates[i]` holds from `edges_s[i]` up to, not including, `edges_s[i + 1]`.

    Rates are not negative, per second: bytes/s for a link, a share 0..1 for a load. `on_end` says what follows the
    last edge: "loop" plays again from `loop_from_s` (one of the edges; 0 unless the trace begins with something that
    happens once), "hold" keeps the last rate for ever, "end" is rate 0 for ever. Times are seconds of replay; a
    negative or infinite time is a ValueError, as is a trace that breaks these rules.
    """

    edges_s: np.ndarray
    rates: np.ndarray
    on_end: OnEnd = "loop"
    loop_from_s: float = 0.0

    def __post_init__(self) -> None:
        edges, rates = np.array(self.edges_s, dtype=float), np.array(self.rates, dtype=float)
        if edges.ndim != 1 or len(edges) < 2 or rates.shape != (len(edges) - 1,):
            raise ValueError(f"n rates need n + 1 edges, n at least 1; got shapes {rates.shape} and {edges.shape}")
        if edges[0] != 0 or not edges[-1] < _FOREVER_S or not (np.diff(edges) > 0).all():
            raise ValueError("edges must be finite, start at 0 and ascend strictly")
        if not np.isfinite(rates).all() or not (rates >= 0).all():
            raise ValueError("rates must be finite and not negative")
        if self.on_end not in ("loop", "hold", "end"):
            raise ValueError(f"on_end is {self.on_end!r}; it can be 'loop', 'hold' or 'end'")
        if self.loop_from_s not in edges[:-1]:
            raise ValueError(f"loop_from_s is {self.loop_from_s}, which is not an edge before the last")
        edges.flags.writeable = rates.flags.writeable = False
        self.__dict__.update(edges_s=edges, rates=rates)
        # "hold" and "end" loop too: over one last piece of 1e18 s.
        if self.on_end == "hold":
            super().__init__(np.append(edges[:-1], _FOREVER_S), rates, float(edges[-2]))
        elif self.on_end == "end":
            super().__init__(np.append(edges, _FOREVER_S), np.append(rates, 0.0), float(edges[-1]))
        else:
            super().__init__(edges, rates, self.loop_from_s)

    @classmethod
    def constant(cls, rate: float) -> "RateTrace":
        return cls(np.array([0.0, 1.0]), np.array([rate]), "hold")

    @classmethod
    def from_samples(cls, rates: ArrayLike, interval_s: float, on_end: OnEnd = "loop") -> "RateTrace":
        """Equally spaced samples, each holding for `interval_s`."""
        values = np.asarray(rates, dtype=float)
        return cls(np.arange(len(values) + 1) * interval_s, values, on_end)

    @property
    def duration_s(self) -> float:
        return float(self.edges_s[-1])

    def mean(self) -> float:
        """Mean rate from 0 to `duration_s`."""
        return self.amount(0, self.duration_s) / self.duration_s

    def with_rates(self, rates: np.ndarray) -> "RateTrace":
        """Returns the same course at other rates. Raises ValueError for a rate below 0."""
        return RateTrace(self.edges_s, rates, self.on_end, self.loop_from_s)

    def complement(self) -> "RateTrace":
        """Returns one minus each rate: the share that a load leaves over. Raises ValueError for a rate above 1."""
        return self.with_rates(1 - self.rates)
