"""The interface of a loader: asked, whenever a path has room, what that path does next."""

from dataclasses import dataclass
from typing import Protocol

from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What a loader may know of the world: the plan's assumptions and what was seen since.

    Rates are what this load can expect for itself. `goodput_bytes_per_s` and `compute_speed` (nominal over
    actual duration) are seen over the last window, None before anything was seen.
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
    """Decides; never does. None means: nothing until something changes (a unit arrives, a window passes)."""

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        """Called once, before anything else, with estimated costs: make the plan here."""
        ...

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None: ...

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None: ...
