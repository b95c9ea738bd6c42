"""The interface of a loader, which decides what a path does next whenever that path has room."""

from dataclasses import dataclass
from typing import Protocol

from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What a loader may know: the planned rates, and the rates observed since.

    Rates are this load's share. `goodput_bytes_per_s` and `compute_speed` (nominal over actual duration) are
    observed over the last window; None before the first observation.
    """

    now_s: float
    planned_bytes_per_s: float
    rtt_s: float
    goodput_bytes_per_s: float | None = None
    compute_speed: float | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute these units, in this order; each must be computable once those before it are done."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """Fetch these units in one transfer, at an encoding level."""

    units: tuple[int, ...]
    level: int = 0


class Loader(Protocol):
    """Decides, and carries nothing out. None: nothing to do until a unit arrives or a window passes."""

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        """Called once, before anything else, with estimated costs: make the plan here."""
        ...

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None: ...

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None: ...
